"""Tells samplers the epoch, in loops that read their data by themselves."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Run
from hookbus.errors import ConfigError

__all__ = ["DistSamplerSeedHook"]


class DistSamplerSeedHook(Hook):
    """Calls `set_epoch(epoch)` of the training loader's sampler before each epoch, with the index from 0.

    The Trainer does so by itself, so there it has nothing to do.
    """

    makes_requests = False

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._sampler: Any = None

    def before_train(self, run: Run) -> None:
        """Find the sampler.

        Raises:
            ConfigError: a loop of one's own has not said what its loader is.
        """
        self._sampler = None
        if run.trainer is not None:
            run.logger.info("%s: the Trainer tells samplers the epoch by itself, so there is nothing to do.", self.name)
            return
        if run.train_loader is None:
            raise ConfigError(
                [f"hook {self.name!r} tells the training loader's sampler the epoch: give bus.run a train_loader=."]
            )
        self._sampler = _sampler_of(run.train_loader)
        if self._sampler is None:
            run.logger.info("%s: no sampler wants to know the epoch, so there is nothing to do.", self.name)

    def before_train_epoch(self, epoch: int) -> None:
        """Tell it."""
        if self._sampler is not None:
            self._sampler.set_epoch(epoch)


def _sampler_of(loader: Any) -> Any:
    """What wants to know the epoch: the loader's sampler, or that of its batch sampler, or the batch sampler itself."""
    batches = getattr(loader, "batch_sampler", None)
    candidates = (getattr(loader, "sampler", None), getattr(batches, "sampler", None), batches)
    return next((each for each in candidates if hasattr(each, "set_epoch")), None)
