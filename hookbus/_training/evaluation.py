"""Loops of validations, tests and predictions of the Trainer.

Evaluation preserves the training modes of all modules, the gradient mode and the RNG states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from hookbus._training.eval_metrics import EvalMetric, MeanMetric, is_torchmetric, sync_torchmetrics
from hookbus.data.batches import get_targets, move_to_device
from hookbus.data.rng import isolate_rng
from hookbus.data.samplers import shard_loader
from hookbus.data.workers import iter_loader
from hookbus.errors import LoopError, MetricError
from hookbus.metrics.store import is_scalar
from hookbus.metrics.windows import to_float

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus._training.output_collector import OutputCollector


@contextmanager
def eval_mode(*modules: nn.Module | None) -> Iterator[None]:
    """Set modules to evaluation mode and disable gradients inside the context.

    The training mode of every module, the gradient mode and the RNG states are restored on exit.

    Args:
        modules: The model to evaluate and its loss function; None for one that the loop does not have.
    """
    present = [module for module in modules if module is not None]
    with isolate_rng(), torch.no_grad(), ExitStack() as stack:
        for module in present:
            stack.enter_context(preserve_training_modes(module))
            module.eval()
        yield


@contextmanager
def preserve_training_modes(model: nn.Module) -> Iterator[None]:
    """Restore the training mode of every module of the model on exit.

    Args:
        model: The model.
    """
    # `model.train()` on exit would also put modules into training mode that the user has frozen with `eval()`.
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate(
    run: Run,
    stage: Literal["val", "test", "predict"],
    loaders: Any,
    metrics: Mapping[str, EvalMetric],
    device: torch.device,
    collector: OutputCollector | None = None,
) -> None:
    """Evaluate the model on each loader and emit the evaluation events.

    In distributed training, each batch is evaluated by exactly one rank, and a rank may have no batches.

    Args:
        run: The run.
        stage: Prefix of the events and results, "val", "test" or "predict".
        loaders: A loader, or a mapping of name to loader.
        metrics: Metrics by name, computed in addition to the scalars that the model returns.
        device: The device of the model.
        collector: Receiver of the outputs of each batch. Default: None, to keep none.

    Raises:
        LoopError: If there is no loader, a loader yields no batches on any rank, or the outputs or targets that the
            metrics require are missing.
        MetricError: If the result of a metric is not a single number.
    """
    if not (pairs := named_loaders(loaders)):
        raise LoopError(
            f"{stage}_loader: expected at least one loader, got an empty mapping. Pass a loader or a mapping of name "
            "to loader."
        )
    if run.trainer is not None:
        run.trainer.steps.prepare_eval(run.ranks)
    if run.validations.average is not None:
        collector = None  # the outputs are those of the primary average
    for name, loader in pairs:
        run.bus.fire(f"before_{stage}_epoch", dataloader_name=name)
        if collector is not None:
            collector.begin(name)
        _evaluate_loader(run, stage, name, loader, metrics, device, collector)
        results = _compute_synced_metrics(run, metrics)
        # Metrics such as `EpochMetric` keep all outputs, whose memory the listeners of the next event may need.
        for metric in metrics.values():
            metric.reset()
        run.bus.fire(f"after_{stage}_epoch", metrics=results, dataloader_name=name)


def named_loaders(loaders: Any) -> list[tuple[str | None, Iterable[Any]]]:
    """Return the (name, loader) pairs of a mapping; a single loader has the name None.

    Args:
        loaders: A loader, or a mapping of name to loader.
    """
    return list(loaders.items()) if isinstance(loaders, Mapping) else [(None, loaders)]


def reset_metrics(metrics: Mapping[str, EvalMetric], device: torch.device) -> None:
    """Reset metrics and move them to a device."""
    for metric in metrics.values():
        # A torchmetrics object stores its state on its own device, which has to be the device of the batches.
        if hasattr(metric, "to"):
            metric.to(device)
        metric.reset()


def compute_metrics(metrics: Mapping[str, EvalMetric]) -> dict[str, Any]:
    """Compute metrics and return their results by name.

    A metric that returns a mapping contributes each item under its key instead of the name of the metric.

    Raises:
        MetricError: If a result is not a single number.
    """
    return {name: value for item in metrics.items() for name, value in _get_results(*item)}


def _compute_synced_metrics(run: Run, metrics: Mapping[str, EvalMetric]) -> dict[str, Any]:
    """Return the results over all ranks, on every rank."""
    ranks = run.ranks
    if ranks.world_size == 1:
        return compute_metrics(metrics)
    for name, metric in metrics.items():
        if is_torchmetric(metric):
            sync_torchmetrics(name, metric, ranks)
        else:
            metric.combine(ranks)  # type: ignore[attr-defined]
    # Rank 0 is assigned the first batch. Other ranks may have none, and some metrics cannot be computed without any.
    results = {name: to_float(value) for name, value in compute_metrics(metrics).items()} if ranks.is_main else {}
    return ranks.broadcast("metric results", results)


def update_metrics(metrics: Mapping[str, EvalMetric], batch: Any, outputs: Any, samples: int | None = None) -> None:
    """Update metrics with one batch.

    Args:
        metrics: Metrics by name.
        batch: A batch from which `get_targets` returns the targets.
        outputs: The model's output, or a mapping that contains it under "output" or "logits".
        samples: Number of samples of the batch. Default: None, if it is unknown.

    Raises:
        LoopError: If the output or the targets are missing.
    """
    output = outputs.get("output", outputs.get("logits")) if isinstance(outputs, Mapping) else outputs
    targets = get_targets(batch)
    if output is None or targets is None:
        missing = "output of the model is" if output is None else "targets are"
        raise LoopError(
            f"metrics {', '.join(metrics)}: the {missing} missing. Use batches of the form (inputs, targets) or "
            "mappings with 'targets' or 'labels', and models that return the output itself or a mapping with 'output' "
            "or 'logits'."
        )
    for metric in metrics.values():
        if isinstance(metric, MeanMetric):
            metric.update(output, targets, samples)
        else:
            metric.update(output, targets)


def _shard_loader(run: Run, stage: str, loader: Iterable[Any]) -> Iterable[Any]:
    """Return the batches of this rank: all of them if there is one rank or if the user shards the data."""
    ranks, is_complete = run.ranks, stage == "predict"
    is_alone = ranks.world_size == 1
    if (is_alone and not is_complete) or (not is_alone and run.trainer is not None and run.trainer.train_shard is None):
        return loader
    make = partial(shard_loader, loader, ranks.rank, ranks.world_size, run.seed, complete=is_complete)
    # Cached if the loader has persistent workers: a new loader would start new ones for each validation.
    shard: Iterable[Any] | None = run.validations.cached_loader(loader, make)
    if shard is None and not is_alone:
        run.validations.warn_once(
            "The evaluation loader (%s) cannot be sharded: each of the %s ranks reads all of its batches. Use a "
            "sampler that shards the data; otherwise samples are counted more than once.",
            type(loader).__name__,
            ranks.world_size,
        )
    return loader if shard is None else shard


def _evaluate_loader(
    run: Run,
    stage: str,
    name: str | None,
    loader: Iterable[Any],
    metrics: Mapping[str, EvalMetric],
    device: torch.device,
    collector: OutputCollector | None,
) -> None:
    fire, step, batch_idx = run.bus.fire, run.bus.calls.get(f"{stage}_step"), -1
    reset_metrics(metrics, device)
    predicts = stage == "predict"
    batches = iter_loader(_shard_loader(run, stage, loader), indices=predicts or collector is not None)
    for batch_idx, batch in enumerate(batches):
        if device.type != "cpu":
            batch = move_to_device(batch, device)
        run.batch_sizes.hand_out(batch, getattr(batches, "size", None))
        fire(f"before_{stage}_iter", batch_idx=batch_idx, batch=batch, dataloader_name=name)
        outputs = step(run, batch)
        if metrics:
            update_metrics(metrics, batch, outputs, run.validations.batch_samples)
        indices = getattr(batches, "indices", None)
        more = {"indices": indices} if predicts else {}
        fire(f"after_{stage}_iter", batch_idx=batch_idx, batch=batch, outputs=outputs, dataloader_name=name, **more)
        if collector is not None:
            collector.add(name, outputs, indices, run.validations.batch_samples)
    # A rank without batches is valid, so the count is summed over ranks; all ranks then raise the same error.
    if not sum(run.ranks.all_gather("evaluated batches", batch_idx + 1)):
        which = f" {name!r}" if name else ""
        raise LoopError(
            f"{stage}_loader{which}: expected at least one batch, got none. Pass a loader that yields batches in every "
            "epoch: an iterator can be read only once, and drop_last may drop the only batch."
        )


def _get_results(name: str, metric: EvalMetric) -> list[tuple[str, Any]]:
    result = metric.compute()
    values = result if isinstance(result, Mapping) else {name: result}
    for key, value in values.items():
        if not is_scalar(value):
            shape = getattr(value, "shape", None)
            label = type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"
            raise MetricError(
                f"metric {key!r}: expected a single number, got {label}. Average the values, or return a mapping of "
                "name to number."
            )
    return list(values.items())
