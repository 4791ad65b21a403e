"""Preconditions of a training: `fit` verifies them before anything is written, and `check` verifies the same list.

No batch is read. What one batch of each loader shows in addition is checked in `hookbus.trainer.checking`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hookbus._run.preconditions import check_preconditions, describe_missing_validation
from hookbus._run.session import check_work_dir_options
from hookbus._training.lr_scheduler import LRSchedulerStepper, copy_scheduler, load_scheduler
from hookbus._utils.arguments import get_by_name, raise_config_error, raise_errors
from hookbus.data.loaders import loader_length
from hookbus.errors import ConfigError, HookbusError, RequestError, WorkDirError
from hookbus.hook import Hook
from hookbus.trainer.initial_weights import file_checks, load_resume_metadata
from hookbus.trainer.missing_loss import find_loss_problem
from hookbus.trainer.named_objects import check_steps, get_implemented

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.trainer.setup import TrainerSetup

Check = Callable[[], str]
"""A check that returns a line that describes the training, "" for none, or raises a HookbusError."""


def check_training(trainer: TrainerSetup, run: Run) -> None:
    """Check that a training can start, before its work directory is acquired and before any event is emitted.

    Args:
        trainer: Trainer.
        run: Run of the training, which has not started.

    Raises:
        HookbusError: If a precondition is not met. The message contains all of them, one per line.
    """
    raise_errors(execute_checks(build_preconditions(trainer, run))[1])


def execute_checks(checks: Iterable[Check]) -> tuple[list[str], list[HookbusError]]:
    """Return the lines and the errors of checks."""
    lines: list[str] = []
    errors: list[HookbusError] = []
    for check in checks:
        try:
            lines.append(check())
        except HookbusError as error:
            errors.append(error)
    return [line for line in lines if line], errors


def build_preconditions(trainer: TrainerSetup, run: Run) -> list[Check]:
    """Return all preconditions of a training that are known without a batch of its data."""
    return [
        partial(_check_arguments, trainer),
        partial(_check_steps, trainer),
        partial(_check_optimizers, trainer),
        partial(_check_validation, trainer, run),
        partial(_check_run, run),
        partial(_check_scheduler, trainer),
        # Files are only read by rank 0; other ranks may not see them.
        *(file_checks(trainer) if run.ranks.is_main else ()),
        *([partial(_check_work_dir, trainer)] if run.ranks.is_main else ()),
    ]


def _check_arguments(trainer: TrainerSetup) -> str:
    """Check the arguments that a training requires, and other uses of a Trainer do not."""
    problems = []
    if trainer.optimizer is None:
        problems.append("fit: the optimizer is missing. Pass optimizer= to the Trainer.")
    if trainer.train_loader is None:
        problems.append("fit: the training data are missing. Pass train_loader= to the Trainer.")
    if (trainer.epochs is None) == (trainer.iterations is None):
        problems.append("fit: exactly one limit is required. Pass either epochs= or iterations=.")
    raise_config_error(problems)
    return ""


def _check_steps(trainer: TrainerSetup) -> str:
    check_steps(trainer)
    raise_config_error([find_loss_problem(trainer)])
    return ""


def _check_optimizers(trainer: TrainerSetup) -> str:
    """Check that the loop can step each optimizer, unless a hook implements `train_step`."""
    if "train_step" not in get_implemented(trainer):
        names = [type(part).__name__ for part in get_by_name(trainer.optimizer).values() if _requires_closure(part)]
        raise_config_error(
            f"optimizer: {name} requires a closure, which this loop does not pass. Use another optimizer, or write a "
            "hook with a train_step."
            for name in names
        )
    return ""


def _requires_closure(optimizer: Any) -> bool:
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return any(
        parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        for parameter in parameters
    )


def _check_validation(trainer: TrainerSetup, run: Run) -> str:
    """Check that the run has a validation if the Trainer itself requires one."""
    monitor = trainer.scheduler.monitor
    readers = {} if monitor is None else {"scheduler:": [monitor]}
    readers |= {"validate_first:": []} if trainer.validate_first else {}
    try:
        missing = [] if not readers or run.validations.is_available("val") else [*readers]
    except RequestError:
        missing = []  # two hooks validate, which is an error of the hooks
    raise_config_error(describe_missing_validation(reader, readers[reader]) for reader in missing)
    return ""


def _check_run(run: Run) -> str:
    check_preconditions(run)
    return f"hooks: {', '.join(run.bus.hooks) or 'none'}"


# -- scheduler -------------------------------------------------------------------------------


def _check_scheduler(trainer: TrainerSetup) -> str:
    """Check that the scheduler, restored if the training resumes, accepts the number of steps of the training."""
    scheduler, metadata = trainer.scheduler, load_resume_metadata(trainer)
    if metadata is None or "scheduler" not in metadata:
        check_scheduler_length(trainer, scheduler, *_get_progress(trainer))
        return ""
    named = isinstance(scheduler.scheduler, Mapping)
    copies = {name: copy_scheduler(part) for name, part in get_by_name(scheduler.scheduler).items()}
    try:
        for name, part in copies.items():
            load_scheduler(part, metadata["scheduler"][name] if named else metadata["scheduler"])
    except Exception:  # cannot be copied, or the state does not match, which is an error when the run resumes
        return ""
    stepper = LRSchedulerStepper(copies if named else copies.get(""), scheduler.interval, scheduler.monitor)
    check_scheduler_length(trainer, stepper, metadata["meta"]["epoch"], metadata["meta"]["iter"])
    return ""


def _get_progress(trainer: TrainerSetup) -> tuple[int, int]:
    """Return the completed epochs and iterations of the training that `fit` continues."""
    current = trainer.bus.current
    return (current.epochs_done, current.iters_done) if current.trainer is trainer else (0, 0)


def check_scheduler_length(trainer: TrainerSetup, scheduler: LRSchedulerStepper, epochs: int, iterations: int) -> None:
    """Raise if the scheduler does not accept the steps up to the limit of the training.

    Args:
        trainer: Trainer.
        scheduler: Scheduler, restored if the training resumes.
        epochs, iterations: Completed epochs and iterations.

    Raises:
        ConfigError: If a step would raise an exception.
    """
    try:
        scheduler.check_length(_count_scheduler_steps(trainer, epochs, iterations))
    except ConfigError as error:
        raise ConfigError(f"scheduler: {error}") from error


def _count_scheduler_steps(trainer: TrainerSetup, epochs: int, iterations: int) -> int:
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
