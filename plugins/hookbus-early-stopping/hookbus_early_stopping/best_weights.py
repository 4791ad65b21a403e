"""Weights of the best score: in memory or in the best checkpoint, and the check that a hook writes that one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from hookbus import Run
from hookbus.checkpoint import CheckpointSaver, flatten_weights, read_checkpoint
from hookbus.errors import ConfigError, MetricError
from hookbus.metrics import resolve_metric_name


class BestWeights(NamedTuple):
    """Raw and averaged weights of the same optimizer step.

    Attributes:
        raw: State dict of the model with the raw weights.
        averaged: Averaged weights by name, None if no hook averages the weights.
        further: Averaged weights of further hooks, by the name of the hook.
    """

    raw: dict[str, Any]
    averaged: dict[str, Tensor] | None
    further: Mapping[str, dict[str, Tensor]] = {}

    @classmethod
    def from_run(cls, run: Run) -> BestWeights:
        """Copy the current raw and averaged weights to CPU memory, whichever of the two the model contains."""
        # An averaging hook may still update its averages on another thread.
        run.weights.wait()
        averaged = run.weights.averaged()
        further = {name: _copy(weights) for name, weights in run.weights.further_averages().items()}
        return cls(_copy(run.weights.raw()), None if averaged is None else _copy(averaged), further)

    @classmethod
    def from_file(cls, run: Run, metric: str) -> BestWeights | None:
        """Load the weights of the best checkpoint.

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
        further = {name: flatten_weights(weights) for name, weights in checkpoint.get("averages", {}).items()}
        raw = flatten_weights(checkpoint["state_dict"])
        return cls(raw, None if averaged is None else flatten_weights(averaged), further)

    def load(self, run: Run) -> None:
        """Load the weights into the model of a run, which may have enabled or disabled averaging since."""
        # Validation evaluates the averaged weights if a hook averages, so these earned the score.
        if run.weights.averaged() is None:
            # The averages may lack buffers of the model: overlay them on the raw state dict.
            run.weights.load({**self.raw, **(self.averaged or {})}, None)
        else:
            further = {name: self.further.get(name, self.raw) for name in run.weights.further}
            run.weights.load(self.raw, self.raw if self.averaged is None else self.averaged, further)


def check_savers(run: Run) -> None:
    """Raise if no hook that writes checkpoints keeps the best one."""
    savers = [hook for hook in run.bus.hooks.values() if isinstance(hook, CheckpointSaver)]
    # A custom loop without any may provide a saver after the start: this is decided in `before_train`.
    if savers and not any(getattr(saver, "keeps_best", True) for saver in savers):
        check_saver(savers[0])
    elif not savers and run.trainer is not None:
        check_saver(run.get("checkpoint_saver"))


def check_saver(saver: Any) -> None:
    """Check that the checkpoint hook keeps the best checkpoint.

    Raises:
        ConfigError: If no hook writes checkpoints, or the checkpoint hook keeps no best checkpoint.
    """
    if saver is None:
        problem, remedy = "requires the checkpoint hook", "Install it (pip install hookbus-checkpoint) and add it"
    # A custom saver without the attribute is assumed to keep the best file.
    elif not getattr(saver, "keeps_best", True):
        problem = "requires the best checkpoint, but the checkpoint hook has `save_best: false` or `save_top_k: 0`"
        remedy = "Remove the setting"
    else:
        return
    raise ConfigError([f"restore_best_weights: file {problem}. {remedy}, or set it to memory."])


def _copy(weights: Mapping[str, Any]) -> dict[str, Any]:
    # The `_extra_state` of a module may be any object, not only a tensor.
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in weights.items()
    }
