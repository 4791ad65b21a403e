"""Validation of a trainer without training, as in `hookbus check`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookbus._run.acquisition import preview
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus._run.preconditions import check_hooks
from hookbus._training.evaluation import eval_mode, named_loaders, reset_metrics, update_metrics
from hookbus._training.lr_scheduler import LRSchedulerStepper
from hookbus._training.outputs import extract_loss
from hookbus._training.scheduler_length import copy_scheduler, load_scheduler
from hookbus._utils.imports import describe_error
from hookbus._utils.named import get_by_name
from hookbus._utils.packages import package_label
from hookbus.data.batches import move_to_device
from hookbus.data.loaders import loader_length
from hookbus.data.resumable_loader import make_resumable
from hookbus.data.rng import isolate_rng
from hookbus.data.seeded_sampler import PassPosition
from hookbus.errors import ConfigError, HookbusError, LoopError, WorkDirError
from hookbus.hook import Hook
from hookbus.trainer.expected_metrics import ExpectedMetrics
from hookbus.trainer.initial_weights import file_checks, load_resume_metadata
from hookbus.trainer.named_objects import check_steps, get_implemented

if TYPE_CHECKING:
    from hookbus.trainer.setup import TrainerSetup

__all__ = ["check_limits", "check_optimizer", "check_ready", "check_scheduler_length", "check_trainer"]


def check_ready(trainer: TrainerSetup) -> None:
    """Raise if a trainer lacks an argument that training requires. Called before the work directory is acquired.

    Raises:
        LoopError: If the optimizer, the data, the limit, or the validation that a scheduler requires is missing.
        ConfigError: If the optimizer is not supported by the loop, or if a schedule requires an unknown limit.
    """
    if trainer.optimizer is None:
        raise LoopError("fit: the optimizer is missing. Pass optimizer= to the Trainer.")
    if trainer.train_loader is None:
        raise LoopError("fit: the training data are missing. Pass train_loader= to the Trainer.")
    if (trainer.epochs is None) == (trainer.iterations is None):
        raise LoopError("fit: exactly one limit is required. Pass either epochs= or iterations=.")
    if trainer.scheduler.monitor is not None and trainer.val_loader is None:
        raise LoopError(
            f"The scheduler requires {trainer.scheduler.monitor} of a validation, but there is no val_loader. Pass "
            "val_loader= to the Trainer."
        )
    check_steps(trainer)
    for optimizer in get_by_name(trainer.optimizer).values():
        check_optimizer(trainer, optimizer)
    check_limits(trainer)


def check_optimizer(trainer: TrainerSetup, optimizer: Any) -> None:
    """Raise if the loop cannot step an optimizer, unless a hook implements `train_step`.

    Raises:
        ConfigError: If the optimizer requires a closure.
    """
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    uses_loop_step = "train_step" not in get_implemented(trainer)
    if uses_loop_step and any(
        parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        for parameter in parameters
    ):
        name = type(optimizer).__name__
        raise ConfigError(
            [
                f"optimizer: {name} requires a closure, which this loop does not pass. Use another optimizer, or "
                "write a hook with a train_step."
            ]
        )


def check_limits(trainer: TrainerSetup) -> None:
    """Raise if a schedule requires the end of the training and the end is unknown.

    Raises:
        ConfigError: If the end is unknown. The message names the hook and the point.
    """
    clock, table = Clock(), trainer.bus.table
    clock.max_epochs, clock.max_iters = trainer.epochs, trainer.iterations
    clock.epoch_length = loader_length(trainer.train_loader, trainer.train_shard)
    for name, point in trainer.bus.points.items():
        counters = PointCounters(clock, point)
        for listener in table.listeners(name, trainer.bus.current):
            with _prefix_listener_errors(listener.hook, name):
                if listener.schedule is not None:
                    listener.schedule.check_limit(counters)


@contextmanager
def _prefix_listener_errors(hook: str, point: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError([f"hook {hook!r} at {point}: {error}"]) from None


def check_trainer(trainer: TrainerSetup) -> list[str]:
    """Validate that a trainer can train. No file is written; weights and RNG states are unchanged.

    Returns:
        Lines that describe the training.

    Raises:
        HookbusError: If the training would fail. The message contains one line per error.
    """
    lines: list[str] = []
    failures: list[HookbusError] = []
    for check in _build_checks(trainer):
        try:
            lines.append(check())
        except HookbusError as error:
            failures.append(error)
    # A single failure keeps its type, which determines the exit code.
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise HookbusError("\n".join(map(str, failures)))
    return [line for line in lines if line]


def _build_checks(trainer: TrainerSetup) -> list[Callable[[], str]]:
    loaders: list[tuple[str, str | None, Iterable[Any] | None]] = [("train", None, trainer.train_loader)]
    for kind, split in (("val", trainer.val_loader), ("test", trainer.test_loader)):
        loaders += [(kind, name, loader) for name, loader in named_loaders(split)] if split is not None else []
    expected = ExpectedMetrics(trainer)
    return [
        partial(_describe_model, trainer),
        *(partial(_check_loader, trainer, expected, *entry) for entry in loaders),
        partial(_describe_limit, trainer),
        partial(_check_hooks, trainer),
        *(partial(_check_metrics, expected, *reader) for reader in _metric_readers(trainer)),
        partial(_check_scheduler, trainer),
        *file_checks(trainer),
        partial(_check_work_dir, trainer),
    ]


def _metric_readers(trainer: TrainerSetup) -> list[tuple[str, Collection[str]]]:
    """Return the readers of validation results with the metrics that they require."""
    hooks = {name: hook for name, hook in trainer.bus.hooks.items() if isinstance(hook, Hook)}
    readers = [(f"hook {name!r} ({package_label(hook)})", hook.required_metrics) for name, hook in hooks.items()]
    monitor = trainer.scheduler.monitor
    return readers if monitor is None else [*readers, ("scheduler", [monitor])]


def _check_metrics(expected: ExpectedMetrics, reader: str, metrics: Collection[str]) -> str:
    expected.require(reader, metrics)
    return ""


def _check_scheduler(trainer: TrainerSetup) -> str:
    """Check that the scheduler, restored if the training resumes, accepts the number of steps of the training."""
    scheduler, metadata = trainer.scheduler, load_resume_metadata(trainer)
    if metadata is None or "scheduler" not in metadata:
        check_scheduler_length(trainer, scheduler, 0, 0)
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
        raise ConfigError([f"scheduler: {error}"]) from error


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


def _describe_model(trainer: TrainerSetup) -> str:
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return f"model: {type(trainer.model).__name__}, {parameters:,} parameters to train on {trainer.device}"


def _describe_limit(trainer: TrainerSetup) -> str:
    limit, unit = (trainer.iterations, "iteration") if trainer.epochs is None else (trainer.epochs, "epoch")
    return f"limit: {limit} {unit}" if limit == 1 else f"limit: {limit} {unit}s"


def _check_hooks(trainer: TrainerSetup) -> str:
    """Raise if the hooks have no valid order, or if a precondition of a hook is not met."""
    trainer.bus.explain()
    check_hooks(trainer.runs.create("train"))
    return f"hooks: {', '.join(trainer.bus.hooks) or 'none'}"


def _check_loader(
    trainer: TrainerSetup, expected: ExpectedMetrics, kind: str, name: str | None, loader: Iterable[Any] | None
) -> str:
    """Pass one batch through the model and the metrics."""
    title = f"{kind}_loader{f' {name!r}' if name else ''}"
    try:
        batch = _first_batch(trainer, loader)
    except Exception as error:
        raise LoopError(f"The {title} cannot be read: {describe_error(error)}.") from error
    if batch is None:
        raise LoopError(f"The {title} yields no batch. Pass a loader with at least one batch.")
    try:
        outputs = _try_batch(trainer, kind, move_to_device(batch, trainer.device))
    except HookbusError:
        raise
    except Exception as error:
        raise LoopError(f"A batch of the {title} cannot be processed by the model: {describe_error(error)}.") from error
    if kind == "val" and outputs is not None:
        expected.observe_batch(name, outputs, trainer.eval_metrics)
    reset_metrics(trainer.eval_metrics, trainer.device)
    length = loader_length(loader)
    return f"{kind}{f' {name}' if name else ''}: {'unknown number of' if length is None else length} batches"


def _first_batch(trainer: TrainerSetup, loader: Iterable[Any] | None) -> Any:
    """Return the first batch of a loader as in training, with all RNG states restored."""
    with isolate_rng():
        # `hookbus check` must not change the random numbers of a later training in the same process.
        return next(make_resumable(loader or (), trainer.seed or 0).batches(PassPosition(0)), None)


def _try_batch(trainer: TrainerSetup, kind: str, batch: Any) -> Any:
    if trainer.model_names and trainer.steps.step_fn is None:
        return None  # the steps of hooks cannot be executed without a run
    mode = _isolated_train_mode if kind == "train" else eval_mode
    with mode(trainer.model, trainer.loss):
        outputs = trainer.steps.eval_step(trainer.bus.current, batch)
    if kind == "train":
        extract_loss(outputs, trainer.steps.loss_fn)
    elif trainer.eval_metrics:
        reset_metrics(trainer.eval_metrics, trainer.device)
        update_metrics(trainer.eval_metrics, batch, outputs)
    return outputs


@contextmanager
def _isolated_train_mode(model: nn.Module, loss: nn.Module | None) -> Iterator[None]:
    """Context manager that restores buffers and RNG states on exit. The modules stay in training mode."""
    # The forward pass in training mode updates buffers such as the running statistics of BatchNorm.
    modules = [model] if loss is None else [model, loss]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    with isolate_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, saved in buffers:
                    buffer.copy_(saved)


def _check_work_dir(trainer: TrainerSetup) -> str:
    if trainer.work_dir is None:
        return "work dir: none, nothing is written"
    path, reason = preview(
        Path(trainer.work_dir),
        resume=trainer.resume == "auto",
        overwrite=trainer.overwrite,
        writes_config=hasattr(trainer.config, "to_yaml"),
    )
    if reason:
        raise WorkDirError(reason)
    return f"work dir: {path}"
