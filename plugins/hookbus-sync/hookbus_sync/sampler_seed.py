"""Epoch numbers for the samplers of custom loops."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Needs, Run, hookimpl
from hookbus.errors import ConfigError


class DistSamplerSeedHook(Hook):
    """Call `set_epoch(epoch)` of the training sampler before each epoch, with the epoch index from 0.

    The Trainer calls `set_epoch` automatically, so the hook is a no-op there.
    """

    makes_requests = False
    needs = Needs(points=("before_train_epoch",), data=True)

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._sampler: Any = None

    def check(self, run: Run) -> None:
        """Check that a custom loop has passed its training loader.

        Raises:
            ConfigError: If it has not.
        """
        if run.mode == "train" and run.trainer is None and run.train_loader is None:
            raise ConfigError("requires the training loader of the run, got None. Pass `train_loader` to `bus.run()`.")

    def before_train(self, run: Run) -> None:
        """Find the sampler."""
        self._sampler = None
        if run.trainer is not None:
            run.logger.info("%s: no-op, because the Trainer calls `set_epoch` of samplers automatically.", self.name)
            return
        self._sampler = _get_sampler(run.train_loader)
        if self._sampler is None:
            run.logger.info("%s: no-op, because the training loader has no sampler with `set_epoch`.", self.name)

    @hookimpl(frequency=False)
    def before_train_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler."""
        if self._sampler is not None:
            self._sampler.set_epoch(epoch)


def _get_sampler(loader: Any) -> Any:
    """Return the object with `set_epoch`: the sampler, the sampler of the batch sampler, or the batch sampler."""
    batches = getattr(loader, "batch_sampler", None)
    # With a custom batch sampler, DataLoader.sampler is an unused default without `set_epoch`.
    candidates = (getattr(loader, "sampler", None), getattr(batches, "sampler", None), batches)
    return next((candidate for candidate in candidates if hasattr(candidate, "set_epoch")), None)
