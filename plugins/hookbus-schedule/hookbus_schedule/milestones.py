"""Milestones of a training, in epochs or iterations."""

from __future__ import annotations

from dataclasses import dataclass

from hookbus import Run, Unit
from hookbus.errors import ConfigError


@dataclass(frozen=True)
class Milestone:
    """First epoch or iteration of a phase of the training. Without either, the phase never begins.

    Attributes:
        epoch: Index of the first epoch, from 0.
        iteration: Index of the first iteration, from 0.
    """

    epoch: int | None = None
    iteration: int | None = None

    def is_reached(self, epoch: int, iteration: int) -> bool:
        """Return whether the phase has begun at the given indices of epoch and iteration."""
        if self.epoch is not None:
            return epoch >= self.epoch
        return self.iteration is not None and iteration >= self.iteration


def get_first_numbers(**settings: int | None) -> dict[str, tuple[int, Unit]]:
    """Return the epoch or iteration, from 1, after the number of completed ones that a setting contains.

    Args:
        settings: Numbers of settings whose names end with `_epoch` or `_iter`; None if one is not set.
    """
    units: dict[str, Unit] = {"epoch": "epoch", "iter": "iter"}
    return {
        setting: (number + 1, units[setting.rpartition("_")[2]])
        for setting, number in settings.items()
        if number is not None
    }


def final_phase_start(run: Run, epochs: int, iterations: int | None) -> Milestone:
    """Return the start of the final phase of a run.

    Args:
        run: Run, whose limit is the end of the phase.
        epochs: Length of the phase in epochs; ignored if `iterations` is not None.
        iterations: Length of the phase in iterations; None to use `epochs`.

    Raises:
        ConfigError: If the run has no limit, or the epoch length is required to convert units and unknown.
    """
    if (epochs if iterations is None else iterations) == 0:
        return Milestone()
    # In epochs if possible: the iterations of the phase then need not be known.
    if iterations is None and run.max_epochs is not None:
        return Milestone(epoch=run.max_epochs - epochs)
    total = run.max_iters
    if total is None:
        if run.max_epochs is None:
            raise ConfigError(["The final phase requires a limit of the run, got none. Set `epochs` or `iterations`."])
        total = run.max_epochs * get_epoch_length(run)
    return Milestone(iteration=total - (epochs * get_epoch_length(run) if iterations is None else iterations))


def get_epoch_length(run: Run) -> int:
    """Return the number of iterations of an epoch.

    Raises:
        ConfigError: If the training loader has no length.
    """
    length = run.epoch_length
    if length is None:
        raise ConfigError(
            [
                "The conversion of epochs to iterations requires the length of the training loader, which is unknown. "
                "Set the length in the unit of the limit of the run, or pass a `train_loader` with a length to "
                "`bus.run()`."
            ]
        )
    return length
