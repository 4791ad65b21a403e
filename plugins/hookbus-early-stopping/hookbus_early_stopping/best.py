"""The weights that earned the best score: kept in memory, or read from the best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookbus.errors import ConfigError, MetricError
from hookbus.metrics import resolve
from hookbus.run import Run
from hookbus.state import read_checkpoint

__all__ = ["BestWeights", "bring_back", "check_saver"]


@dataclass(frozen=True, slots=True)
class BestWeights:
    """Raw and averaged weights of one moment.

    Attributes:
        raw: the state dict of the model, without averages in it.
        averaged: the averaged weights by name, None where nobody averages.
    """

    raw: Mapping[str, Any]
    averaged: Mapping[str, Tensor] | None

    @classmethod
    def copied(cls, run: Run) -> BestWeights:
        """A copy, in main memory, of the weights as they are now, whichever of them are in the model."""
        run.weights.wait()
        averaged = run.weights.averaged()
        return cls(_copy(run.weights.raw()), None if averaged is None else _copy(averaged))

    @classmethod
    def from_file(cls, run: Run, metric: str) -> BestWeights | None:
        """The weights in the best checkpoint; None where there is none.

        Args:
            run: the run that has written it.
            metric: the metric whose best it is.

        Raises:
            CheckpointError: it cannot be read.
        """
        try:
            path = run.best[resolve(metric, run.best)].path
        except MetricError:
            path = None
        if path is None:
            return None
        catch_up = getattr(run.get("saver"), "catch_up", None)
        if catch_up is not None:
            catch_up(run)  # the file may still be written on another thread
        checkpoint = read_checkpoint(path)
        return cls(checkpoint["state_dict"], checkpoint.get("ema_state_dict"))

    def fitting(self, run: Run) -> BestWeights:
        """The same for a run that began or ceased to average since: what earned the score is what is judged."""
        if run.weights.averaged() is None:
            return BestWeights({**self.raw, **(self.averaged or {})}, None)
        return BestWeights(self.raw, self.raw if self.averaged is None else self.averaged)

    def state_dict(self) -> dict[str, Any]:
        """Both, as plain values and tensors. References, not copies."""
        return {"raw": dict(self.raw), "averaged": None if self.averaged is None else dict(self.averaged)}


def bring_back(run: Run, kept: BestWeights | None, hook: str, metric: str) -> bool:
    """Put the best weights into the model, and say so.

    Args:
        run: the run.
        kept: the weights; None for those of the best checkpoint.
        hook: the name of the hook that does it.
        metric: the metric whose best they earned.

    Returns:
        Whether there were any. A run that has kept none, since that was not wanted when it saw its best score, has not.
    """
    best = kept or BestWeights.from_file(run, metric)
    if best is None:
        run.logger.warning("%s: the weights of the best %r were not kept, so the model stays as it is.", hook, metric)
        return False
    best = best.fitting(run)
    run.weights.load(best.raw, best.averaged)
    run.logger.info("%s: the weights of the best %r are back in the model.", hook, metric)
    return True


def check_saver(run: Run, hook: str) -> None:
    """See that somebody writes the file of the best score.

    Args:
        run: the run.
        hook: the name of the hook that reads it.

    Raises:
        ConfigError: nobody does.
    """
    saver = run.get("saver")
    if saver is None:
        how = "needs the checkpoint hook, which writes that file (pip install hookbus-checkpoint). Add it"
    elif not getattr(saver, "keeps_best", True):
        how = "needs the file of the best score, and the checkpoint hook has save_best: false. Leave that out"
    else:
        return
    raise ConfigError([f"hook {hook!r}: restore_best_weights: file {how}, or say restore_best_weights: memory."])


def _copy(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) for name, value in weights.items()}


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
