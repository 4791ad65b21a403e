"""Validation of a trainer without training, as in `hookbus check`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookbus._run.host_needs import format_hook
from hookbus._run.never_due import find_unreachable
from hookbus._run.results import name_results
from hookbus._training.eval_metrics import EvalMetric
from hookbus._training.evaluation import compute_metrics, eval_mode, named_loaders, reset_metrics, update_metrics
from hookbus._training.steps import extract_loss
from hookbus._utils.arguments import raise_errors
from hookbus._utils.imports import describe_error
from hookbus.data.batches import move_to_device
from hookbus.data.loaders import is_shardable, loader_length
from hookbus.data.resumable_loader import make_resumable
from hookbus.data.rng import isolate_rng
from hookbus.data.samplers import PassPosition
from hookbus.distributed.collectives import Collectives
from hookbus.errors import ConfigError, HookbusError, LoopError, MetricError
from hookbus.hook import Hook
from hookbus.metrics.logged import EvaluationMeans
from hookbus.metrics.results import resolve_metric_name
from hookbus.metrics.store import MetricStore
from hookbus.trainer.arguments import LOADERS
from hookbus.trainer.preconditions import Check, build_preconditions, execute_checks, find_loss_problem

if TYPE_CHECKING:
    from hookbus._events.registry import RegisteredPlugin
    from hookbus._run.run import Run
    from hookbus.trainer.setup import TrainerSetup

VALIDATION_POINTS = frozenset(f"{when}_val{part}" for when in ("before", "after") for part in ("", "_epoch", "_iter"))
"""Points whose listeners can add results to a validation."""


class ExpectedMetrics:
    """Collect the names of validation results from one batch of each loader.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: TrainerSetup) -> None:
        self._trainer = trainer
        self._hooks = {name: hook for name, hook in trainer.bus.hooks.items() if isinstance(hook, Hook)}
        self._names: set[str] = set()
        loaders = {} if trainer.val_loader is None else dict(named_loaders(trainer.val_loader))
        self._unseen: set[str | None] = set(loaders)
        self._has_loaders = bool(loaders)

    def observe_batch(self, loader: str | None, outputs: Any, metrics: Mapping[str, EvalMetric]) -> None:
        """Record the result names of one batch."""
        store, evaluation = MetricStore(), EvaluationMeans()
        store.evaluation = evaluation
        store.log_outputs(outputs, None)
        provided = [name for hook in self._hooks.values() for name in hook.provided_metrics or ()]
        results = dict.fromkeys([*evaluation.results(Collectives()), *_result_names(metrics), *provided], 0.0)
        averages = [name for name, hook in self._hooks.items() if hook.averages_weights]
        for average in ("", *averages[1:]):
            name = "/".join(part for part in (average, loader) if part) or None
            self._names |= set(name_results("val", name, results))
        self._unseen.discard(loader)

    def check(self) -> None:
        """Raise if validations will not provide the metrics that hooks and the scheduler require.

        Raises:
            ConfigError: If a name is unknown or ambiguous. The message contains the available metrics.
        """
        readers = {
            format_hook(name, hook): hook.required_metrics
            for name, hook in self._hooks.items()
            if not isinstance(hook.required_metrics, str)  # which is a failed precondition
        }
        if (monitor := self._trainer.scheduler.monitor) is not None:
            readers["scheduler"] = [monitor]
        problems = [
            f"{reader}: {problem}" for reader, names in readers.items() for problem in self._find_problems(names)
        ]
        if problems and self._is_complete():
            raise ConfigError(problems)

    def _find_problems(self, metrics: Collection[str]) -> Iterator[str]:
        for metric in metrics:
            try:
                resolve_metric_name(metric, self._names)
            except MetricError as error:
                yield str(error)

    def _is_complete(self) -> bool:
        """Return whether the collected names are complete; without a loader, the validation itself is missing."""
        adds_results = any(h.validation_fn is not None or h.provided_metrics is None for h in self._hooks.values())
        may_add = adds_results or any(map(_may_add_results, self._trainer.bus.pm.members.values()))
        return self._has_loaders and not self._unseen and not may_add


def _may_add_results(member: RegisteredPlugin) -> bool:
    """Return whether a plugin may add undeclared results: by a `val_step`, or as a plugin that is not a Hook."""
    return "val_step" in member.implementations or not (
        isinstance(member.plugin, Hook) or VALIDATION_POINTS.isdisjoint(member.implementations)
    )


def _result_names(metrics: Mapping[str, EvalMetric]) -> list[str]:
    """Return the result names of metrics."""
    try:
        return list(compute_metrics(metrics))
    except Exception:  # a metric such as AUROC may raise on a single batch; its own name is the best guess
        return list(metrics)


def check_trainer(trainer: TrainerSetup) -> list[str]:
    """Validate that a trainer can train. No file is written; weights and RNG states are unchanged.

    Raises:
        HookbusError: If the training would fail. The message contains one line per error.
    """
    lines, errors = execute_checks(_build_checks(trainer))
    raise_errors(errors)
    return lines


def _build_checks(trainer: TrainerSetup) -> list[Check]:
    trainer.short_run.omit_hooks(trainer.bus)
    loaders: list[tuple[str, str | None, Iterable[Any] | None]] = []
    for kind in (name.removesuffix("_loader") for name in LOADERS):
        split = getattr(trainer, f"{kind}_loader")
        named = [(None, split)] if kind == "train" else named_loaders(split)
        loaders += [(kind, name, loader) for name, loader in named if loader is not None]
    expected, run = ExpectedMetrics(trainer), trainer.runs.create("train")
    return [
        partial(_describe_model, trainer),
        *(partial(_check_loader, trainer, expected, *entry) for entry in loaders),
        partial(_describe_limit, trainer),
        trainer.short_run.describe,
        *build_preconditions(trainer, run),
        expected.check,
        partial(_describe_never_due, run),
    ]


def _describe_model(trainer: TrainerSetup) -> str:
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return f"model: {type(trainer.model).__name__}, {parameters:,} parameters to train on {trainer.device}"


def _describe_never_due(run: Run) -> str:
    return "\n".join(f"warning: {subject} {problem}" for subject, problem in find_unreachable(run).items())


def _describe_limit(trainer: TrainerSetup) -> str:
    limits = {"epoch": trainer.epochs, "iteration": trainer.iterations, "token": trainer.tokens}
    known = [(limit, unit) for unit, limit in limits.items() if limit is not None]
    if len(known) != 1:
        return ""
    limit, unit = known[0]
    return f"limit: {limit} {unit}" if limit == 1 else f"limit: {limit} {unit}s"


def _check_loader(
    trainer: TrainerSetup, expected: ExpectedMetrics, kind: str, name: str | None, loader: Iterable[Any] | None
) -> str:
    """Pass one batch through the model and the metrics."""
    title = f"{kind}_loader{f' {name!r}' if name else ''}"
    try:
        batch = read_first_batch(trainer, loader)
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
    return f"{kind}{f' {name}' if name else ''}: {_describe_length(trainer, kind, loader)}"


def _describe_length(trainer: TrainerSetup, kind: str, loader: Any) -> str:
    """Return the number of batches: of each rank in training, and of all ranks in evaluation, which may be uneven."""
    shard = trainer.train_shard if kind == "train" and is_shardable(loader) else None
    length = loader_length(loader, shard)
    count = "unknown number of" if length is None else f"{length:,}"
    where = " per rank" if shard is not None and shard.world_size > 1 else ""
    return f"{count} {'batch' if length == 1 else 'batches'}{where}"


def read_first_batch(trainer: TrainerSetup, loader: Iterable[Any] | None) -> Any:
    """Return the first batch of a loader as in training, with all RNG states restored."""
    with isolate_rng():
        # `hookbus check` must not change the random numbers of a later training in the same process.
        return next(make_resumable(loader or (), trainer.seed or 0).batches(PassPosition(0)), None)


def _try_batch(trainer: TrainerSetup, kind: str, batch: Any) -> Any:
    # The steps of hooks cannot be executed without a run, and a missing loss is reported by the preconditions.
    if (trainer.model_names and trainer.steps.step_fn is None) or find_loss_problem(trainer):
        return None
    mode = _isolated_train_mode if kind == "train" else eval_mode
    with mode(trainer.model, trainer.loss):
        step = trainer.steps.predict_step if kind == "predict" else trainer.steps.eval_step
        outputs = step(trainer.bus.current, batch)
    if kind == "train":
        extract_loss(outputs, trainer.steps.loss_fn)
    elif trainer.eval_metrics and kind != "predict":
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
