"""Weights of the best score, kept in memory or loaded from the best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookbus import Run
from hookbus.checkpoint import flatten_weights, read_checkpoint
from hookbus.errors import ConfigError, MetricError
from hookbus.metrics import resolve_metric_name


@dataclass(frozen=True, slots=True)
class BestWeights:
    """Raw and averaged weights of the same optimizer step.

    Attributes:
        raw: State dict of the model with the raw weights.
        averaged: Averaged weights by name, None if no hook averages the weights.
    """

    raw: Mapping[str, Any]
    averaged: Mapping[str, Tensor] | None

    @classmethod
    def from_run(cls, run: Run) -> BestWeights:
        """Copy the current raw and averaged weights to CPU memory, whichever of the two the model contains."""
        # An averaging hook may still update its averages on another thread.
        run.weights.wait()
        averaged = run.weights.averaged()
        return cls(_copy(run.weights.raw()), None if averaged is None else _copy(averaged))

    @classmethod
    def from_file(cls, run: Run, metric: str) -> BestWeights | None:
        """Load the weights of the best checkpoint.

        Args:
            run: Run that wrote the checkpoint.
            metric: Metric whose best checkpoint is loaded.

        Returns:
            The weights, or None if the run has no best checkpoint for this metric.

        Raises:
            CheckpointError: If the checkpoint cannot be loaded.
        """
        try:
            path = run.best[resolve_metric_name(metric, run.best)].path
        except MetricError:
            path = None
        if path is None:
            return None
        wait_for_pending = getattr(run.get("checkpoint_saver"), "wait_for_pending", None)
        if wait_for_pending is not None:
            # With `async_save` the file may still be in progress on the writer thread.
            wait_for_pending(run)
        checkpoint = read_checkpoint(path)
        averaged = checkpoint.get("ema_state_dict")
        return cls(flatten_weights(checkpoint["state_dict"]), None if averaged is None else flatten_weights(averaged))

    def adapt_to(self, run: Run) -> BestWeights:
        """Return the weights for a run in which averaging was enabled or disabled after the best score."""
        # Validation evaluates the averaged weights if a hook averages, so these earned the score.
        if run.weights.averaged() is None:
            # The averages may lack buffers of the model: overlay them on the raw state dict.
            return BestWeights({**self.raw, **(self.averaged or {})}, None)
        return BestWeights(self.raw, self.raw if self.averaged is None else self.averaged)

    def state_dict(self) -> dict[str, Any]:
        """Return raw and averaged weights as dicts of tensors. Tensors are references, not copies."""
        return {"raw": dict(self.raw), "averaged": None if self.averaged is None else dict(self.averaged)}


def restore_best_weights(run: Run, weights: BestWeights | None, hook: str, metric: str) -> bool:
    """Load the best weights into the model and log the result.

    Args:
        run: The run.
        weights: Weights in memory; None to load them from the best checkpoint.
        hook: Name of the hook, for the log.
        metric: Metric of the best score, for the log.

    Returns:
        True if weights were loaded, False if neither memory nor a best checkpoint contains them, as after a resume
        from a run with `restore_best_weights: false`.
    """
    best = weights or BestWeights.from_file(run, metric)
    if best is None:
        run.logger.warning("%s: no weights were kept for the best %r; the model keeps its final weights.", hook, metric)
        return False
    best = best.adapt_to(run)
    run.weights.load(best.raw, best.averaged)
    run.logger.info("%s: restored the weights of the best %r.", hook, metric)
    return True


def check_saver(saver: Any) -> None:
    """Check that the checkpoint hook keeps the best checkpoint.

    Args:
        saver: Hook that writes checkpoints; None if there is none.

    Raises:
        ConfigError: If no hook writes checkpoints, or the checkpoint hook keeps no best checkpoint.
    """
    if saver is None:
        problem, remedy = "requires the checkpoint hook", "Install it (pip install hookbus-checkpoint) and add it"
    # A custom saver without the attribute is assumed to keep the best file.
    elif not getattr(saver, "keeps_best", True):
        problem = "requires the best checkpoint, but the checkpoint hook has `save_best: false`"
        remedy = "Remove `save_best`"
    else:
        return
    raise ConfigError([f"restore_best_weights: file {problem}. {remedy}, or set it to memory."])


def _copy(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy_value(value) for name, value in weights.items()}


def _copy_value(value: Any) -> Any:
    # The `_extra_state` of a module may be any object, not only a tensor.
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
