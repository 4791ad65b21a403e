"""Statistics and buffers that belong together on all processes; with one process there is nothing to synchronise."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from hookbus import Hook, Run
from hookbus.model.wrappers import unwrapped
from hookbus_sync.agreeing import agree
from hookbus_sync.norms import norm_states

__all__ = ["SyncBuffersHook", "SyncNormHook"]


class SyncHook(Hook):
    """Makes tensors of the model the same on all processes, after each training epoch and before they are judged."""

    makes_requests = False

    def before_run(self, run: Run) -> None:
        """Say so where there is nothing to do."""
        if run.ranks.world_size == 1:
            found = {} if run.model is None else self.tensors(unwrapped(run.model))
            run.logger.info("%s: one process, so there is nothing to synchronise (%s tensors).", self.name, len(found))

    def after_train_epoch(self, run: Run) -> None:
        """Synchronise what a checkpoint of the epoch's end will hold."""
        self._synchronise(run)

    def before_val(self, run: Run) -> None:
        """Synchronise what is about to be judged."""
        self._synchronise(run)

    def before_test(self, run: Run) -> None:
        """Synchronise what is about to be judged."""
        self._synchronise(run)

    @abstractmethod
    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """What belongs together on all processes, by name."""

    def _synchronise(self, run: Run) -> None:
        if run.ranks.world_size > 1 and run.model is not None:
            agree(self.tensors(unwrapped(run.model)), run.ranks)


class SyncNormHook(SyncHook):
    """The state of normalisation layers: running means, variances by the law of total variance, parameters."""

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The state of all normalisation layers, by name."""
        return norm_states(model)


class SyncBuffersHook(SyncHook):
    """All buffers of the model: means, and running variances by the law of total variance."""

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """All buffers, by name."""
        return dict(model.named_buffers())
