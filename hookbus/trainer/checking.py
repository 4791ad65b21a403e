"""Validation of a trainer without training, as in `hookbus check`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookbus._run.never_due import find_unreachable
from hookbus._training.evaluation import eval_mode, named_loaders, reset_metrics, update_metrics
from hookbus._training.outputs import extract_loss
from hookbus._utils.arguments import raise_errors
from hookbus._utils.imports import describe_error
from hookbus._utils.packages import package_label
from hookbus.data.batches import move_to_device
from hookbus.data.loaders import loader_length
from hookbus.data.resumable_loader import make_resumable
from hookbus.data.rng import isolate_rng
from hookbus.data.seeded_sampler import PassPosition
from hookbus.errors import HookbusError, LoopError
from hookbus.hook import Hook
from hookbus.trainer.expected_metrics import ExpectedMetrics
from hookbus.trainer.missing_loss import find_loss_problem
from hookbus.trainer.preconditions import Check, build_preconditions, execute_checks

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.trainer.setup import TrainerSetup


def check_trainer(trainer: TrainerSetup) -> list[str]:
    """Validate that a trainer can train. No file is written; weights and RNG states are unchanged.

    Returns:
        Lines that describe the training.

    Raises:
        HookbusError: If the training would fail. The message contains one line per error.
    """
    lines, errors = execute_checks(_build_checks(trainer))
    raise_errors(errors)
    return lines


def _build_checks(trainer: TrainerSetup) -> list[Check]:
    loaders: list[tuple[str, str | None, Iterable[Any] | None]] = []
    for kind in ("train", "val", "test"):
        split = getattr(trainer, f"{kind}_loader")
        named = [(None, split)] if kind == "train" else named_loaders(split) if split is not None else []
        loaders += [(kind, name, loader) for name, loader in named if loader is not None]
    expected, run = ExpectedMetrics(trainer), trainer.runs.create("train")
    return [
        partial(_describe_model, trainer),
        *(partial(_check_loader, trainer, expected, *entry) for entry in loaders),
        partial(_describe_limit, trainer),
        *build_preconditions(trainer, run),
        partial(_check_metrics, trainer, expected),
        partial(_describe_never_due, run),
    ]


def _metric_readers(trainer: TrainerSetup) -> list[tuple[str, Collection[str]]]:
    """Return the readers of validation results with the metrics that they require."""
    hooks = {name: hook for name, hook in trainer.bus.hooks.items() if isinstance(hook, Hook)}
    readers = [(f"hook {name!r} ({package_label(hook)})", hook.required_metrics) for name, hook in hooks.items()]
    monitor = trainer.scheduler.monitor
    return readers if monitor is None else [*readers, ("scheduler", [monitor])]


def _check_metrics(trainer: TrainerSetup, expected: ExpectedMetrics) -> str:
    raise_errors(error for reader in _metric_readers(trainer) if (error := expected.find_error(*reader)) is not None)
    return ""


def _describe_model(trainer: TrainerSetup) -> str:
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return f"model: {type(trainer.model).__name__}, {parameters:,} parameters to train on {trainer.device}"


def _describe_never_due(run: Run) -> str:
    return "\n".join(f"warning: {subject} {problem}" for subject, problem in find_unreachable(run).items())


def _describe_limit(trainer: TrainerSetup) -> str:
    if (trainer.epochs is None) == (trainer.iterations is None):
        return ""
    limit, unit = (trainer.iterations, "iteration") if trainer.epochs is None else (trainer.epochs, "epoch")
    return f"limit: {limit} {unit}" if limit == 1 else f"limit: {limit} {unit}s"


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
    if find_loss_problem(trainer):
        return None  # a precondition, which is reported once
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
