"""Preconditions of a training: `fit` verifies them before anything is written, and `check` verifies the same list.

No batch is read. What one batch of each loader shows in addition is checked in `hookbus.trainer.checking`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from hookbus._run.preconditions import check_preconditions, describe_missing_validation
from hookbus._run.session import check_work_dir_options
from hookbus._training.lr_scheduler import LRSchedulerStepper, copy_scheduler, load_scheduler
from hookbus._training.predictions import matches_signature
from hookbus._utils.arguments import get_by_name, raise_config_error, raise_errors
from hookbus.data.loaders import loader_length
from hookbus.distributed.unwrap import unwrap_model
from hookbus.errors import ConfigError, HookbusError, RequestError, WorkDirError
from hookbus.hook import Hook
from hookbus.trainer.arguments import LOADERS
from hookbus.trainer.initial_weights import file_checks, load_resume_metadata

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.trainer.setup import TrainerSetup

Check = Callable[[], str | None]
"""A check that returns a line that describes the training, if there is one, or raises a HookbusError."""


def check_training(trainer: TrainerSetup, run: Run) -> None:
    """Check that a training can start, before its work directory is acquired and before any event is emitted.

    Raises:
        HookbusError: If a precondition is not met. The message contains all of them, one per line.
    """
    raise_errors(execute_checks(build_preconditions(trainer, run))[1])


def execute_checks(checks: Iterable[Check]) -> tuple[list[str], list[HookbusError]]:
    """Return the lines and the errors of checks."""
    lines: list[str | None] = []
    errors: list[HookbusError] = []
    for check in checks:
        try:
            lines.append(check())
        except HookbusError as error:
            errors.append(error)
    return [line for line in lines if line], errors


def get_implemented(trainer: TrainerSetup) -> set[str]:
    """Return the names of the points and actions that hooks implement."""
    return {target for member in trainer.bus.pm.members.values() for target in member.implementations}


def build_preconditions(trainer: TrainerSetup, run: Run) -> list[Check]:
    """Return all preconditions of a training that are known without a batch of its data."""
    return [
        partial(_check_arguments, trainer),
        partial(_check_steps, trainer),
        partial(_check_optimizers, trainer),
        partial(_check_validation, trainer, run),
        partial(_check_disabled_validation, trainer),
        partial(_check_run, run),
        partial(_check_scheduler, trainer),
        # Files are only read by rank 0; other ranks may not see them.
        *(file_checks(trainer) if run.ranks.is_main else ()),
        *([partial(_check_work_dir, trainer)] if run.ranks.is_main else ()),
    ]


def _check_arguments(trainer: TrainerSetup) -> None:
    """Check the arguments that a training requires, and other uses of a Trainer do not."""
    problems = []
    if trainer.optimizer is None:
        problems.append("fit: the optimizer is missing. Pass optimizer= to the Trainer.")
    if trainer.short_run.disables("train"):
        problems.append("limit_train_batches: 0 disables the training loader, so that `fit` has no data. Set 1.0.")
    elif trainer.train_loader is None:
        problems.append("fit: the training data are missing. Pass train_loader= to the Trainer.")
    if [trainer.epochs, trainer.iterations, trainer.tokens].count(None) != 2:
        problems.append("fit: exactly one limit is required. Pass one of epochs=, iterations= and tokens=.")
    raise_config_error(problems)


def _check_steps(trainer: TrainerSetup) -> None:
    """Raise if the default steps cannot train or evaluate the models of a Trainer, unless hooks replace them."""
    implemented, optimizers = get_implemented(trainer), get_by_name(trainer.optimizer)
    if len(optimizers) > 1 and "train_step" not in implemented:
        raise ConfigError(
            f"optimizer: the default step trains one loss with one optimizer, got {', '.join(optimizers)}. "
            "Register a hook with a `train_step(run, batch)` that steps them, or write a loop with `bus.run`."
        )
    loaders = {f"{name.removesuffix('loader')}step": getattr(trainer, name) for name in LOADERS}
    missing = [step for step, loader in loaders.items() if loader is not None and step not in implemented]
    if trainer.model_names and missing and trainer.steps.step_fn is None:
        raise ConfigError(
            f"model: the default steps call one model, got {', '.join(trainer.model_names)}. Pass "
            f"step_fn(models, batch), or register a hook with {' and '.join(f'`{step}`' for step in missing)}."
        )
    raise_config_error([find_loss_problem(trainer)])


def _check_optimizers(trainer: TrainerSetup) -> None:
    """Check that the loop can step each optimizer, unless a hook implements `train_step`."""
    if "train_step" not in get_implemented(trainer):
        names = [type(part).__name__ for part in get_by_name(trainer.optimizer).values() if _requires_closure(part)]
        raise_config_error(
            f"optimizer: {name} requires a closure, which this loop does not pass. Use another optimizer, or write a "
            "hook with a train_step."
            for name in names
        )


def _requires_closure(optimizer: Any) -> bool:
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return any(
        parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        for parameter in parameters
    )


def _check_validation(trainer: TrainerSetup, run: Run) -> None:
    """Check that the run has a validation if the Trainer itself requires one."""
    monitor = trainer.scheduler.monitor
    readers = {} if monitor is None else {"scheduler:": [monitor]}
    readers |= {"validate_first:": []} if trainer.validate_first else {}
    try:
        missing = [] if not readers or run.validations.is_available("val") else [*readers]
    except RequestError:
        missing = []  # two hooks validate, which is an error of the hooks
    raise_config_error(describe_missing_validation(reader, readers[reader]) for reader in missing)


def _check_disabled_validation(trainer: TrainerSetup) -> None:
    """Raise if the validations that hooks require are disabled. The errors of the hooks do not contain the cause."""
    hooks = {name: hook for name, hook in trainer.bus.hooks.items() if isinstance(hook, Hook)}
    readers = [name for name, hook in hooks.items() if hook.requires_validation]
    if trainer.short_run.disables("val") and readers:
        needing = f"{readers[0]} requires" if len(readers) == 1 else f"{' and '.join(readers)} require"
        removed = "the hook" if len(readers) == 1 else "these hooks"
        raise ConfigError(
            f"limit_val_batches: 0 disables the validations that {needing}. Set 1 for one batch, or remove {removed}."
        )


def _check_run(run: Run) -> str:
    check_preconditions(run)
    return f"hooks: {', '.join(run.bus.hooks) or 'none'}"


# -- loss -----------------------------------------------------------------------------------


def find_loss_problem(trainer: TrainerSetup) -> str:
    """Return why no loss can be computed: no loss function, and a model that takes no targets; "" if it may be."""
    steps = trainer.steps
    if steps.loss_fn is not None or steps.step_fn is not None or trainer.model_names:
        return ""
    # Hooks may compute the loss, or replace the batch.
    if not {"train_step", "before_train_iter"}.isdisjoint(get_implemented(trainer)):
        return ""
    model, count = unwrap_model(trainer.model), _count_elements(trainer.train_loader)
    # Hooks of the module may replace the arguments.
    if count is None or model._forward_pre_hooks or matches_signature(model, [None] * count):
        return ""
    return (
        f"loss: missing, because {type(model).__name__}.forward cannot be called with the {count} elements of a batch, "
        "got None. Pass `loss_fn` to the Trainer (`loss:` in a run file), or pass `step_fn`."
    )


def _count_elements(loader: Any) -> int | None:
    """Return the number of elements of each batch, None if it is known only when a batch is read."""
    if not isinstance(loader, DataLoader) or loader.batch_size is None or loader.collate_fn is not default_collate:
        return None
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    is_known = isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__
    return len(dataset.tensors) if is_known else None


# -- scheduler -------------------------------------------------------------------------------


def _check_scheduler(trainer: TrainerSetup) -> None:
    """Check that the scheduler, restored if the training resumes, accepts the number of steps of the training."""
    scheduler, metadata = trainer.scheduler, load_resume_metadata(trainer)
    if metadata is None or "scheduler" not in metadata:
        run = trainer.bus.current
        progress = (run.epochs_done, run.iters_done) if trainer.runs.continues else (0, 0)
        scheduler.check_length(count_scheduler_steps(trainer, *progress))
        return
    named = isinstance(scheduler.scheduler, Mapping)
    copies = {name: copy_scheduler(part) for name, part in get_by_name(scheduler.scheduler).items()}
    try:
        for name, part in copies.items():
            load_scheduler(part, metadata["scheduler"][name] if named else metadata["scheduler"])
    except Exception:  # cannot be copied, or the state does not match, which is an error when the run resumes
        return
    stepper = LRSchedulerStepper(copies if named else copies.get(""), scheduler.interval, scheduler.monitor)
    stepper.check_length(count_scheduler_steps(trainer, metadata["meta"]["epoch"], metadata["meta"]["iter"]))


def count_scheduler_steps(trainer: TrainerSetup, epochs: int, iterations: int) -> int:
    """Return a lower bound of the number of remaining scheduler steps, 1 if it is unknown."""
    length, scheduler = loader_length(trainer.train_loader, trainer.train_shard), trainer.scheduler
    if scheduler.interval == "epoch" and trainer.epochs is not None:
        return trainer.epochs - epochs
    if scheduler.interval == "step" and _hooks_determine_steps(trainer):
        return 1
    limit = trainer.iterations or (trainer.epochs or 0) * (length or 0)
    per_step = trainer.steps.accumulate if scheduler.interval == "step" else length
    return max(limit - iterations, 0) // per_step if limit and per_step else 1


def _hooks_determine_steps(trainer: TrainerSetup) -> bool:
    """Return whether hooks determine in which iterations an optimizer steps, so that the number of steps is unknown."""
    hooks = trainer.bus.hooks.values()
    return "train_step" in get_implemented(trainer) or any(
        isinstance(hook, Hook) and hook.schedules_accumulation for hook in hooks
    )


# -- work directory --------------------------------------------------------------------------


def _check_work_dir(trainer: TrainerSetup) -> str:
    """Check that the work directory can be used, without creating it."""
    check_work_dir_options(trainer.work_dir, trainer.runs.pending_resume, trainer.overwrite)
    path, reason = trainer.runs.preview_work_dir()
    if reason:
        raise WorkDirError(reason)
    return "work dir: none, nothing is written" if path is None else f"work dir: {path}"
