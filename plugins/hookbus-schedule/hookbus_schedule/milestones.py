"""Milestones of a training, in epochs or iterations."""

from __future__ import annotations

from dataclasses import dataclass

from hookbus import Run, Unit
from hookbus.errors import ConfigError


def get_start_points(unit: Unit) -> tuple[str, ...]:
    """Return the points that a loop has to emit for a change at the start of an epoch or iteration."""
    return ("before_train_epoch", "before_train_iter") if unit == "epoch" else ("before_train_iter",)


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

    def get_first_numbers(self, prefix: str) -> dict[str, tuple[int, Unit]]:
        """Return the first epoch or iteration of the phase, from 1, by setting: `<prefix>_epoch` or `<prefix>_iter`."""
        if self.epoch is not None:
            return {f"{prefix}_epoch": (self.epoch + 1, "epoch")}
        return {} if self.iteration is None else {f"{prefix}_iter": (self.iteration + 1, "iter")}


def final_phase_start(run: Run, epochs: int, iterations: int | None) -> Milestone:
    """Return the start of the final phase of a run, which has a length in iterations, or in epochs if that is None.

    Raises:
        ConfigError: If the run has no limit, or the epoch length is required to convert units and unknown.
    """
    if (epochs if iterations is None else iterations) == 0:
        return Milestone()
    # In epochs if possible: the iterations of the phase then need not be known.
    if iterations is None and run.max_epochs is not None:
        return Milestone(epoch=run.max_epochs - epochs)
    return Milestone(iteration=get_total_iterations(run) - to_iterations(run, epochs, iterations))


def get_total_iterations(run: Run) -> int:
    """Return the limit of a run in iterations.

    Raises:
        ConfigError: If the run has no limit, or the epoch length is required to convert it and unknown.
    """
    if run.max_iters is not None:
        return run.max_iters
    if run.max_epochs is None:
        raise ConfigError("The final phase requires a limit of the run, got none. Set `epochs` or `iterations`.")
    return run.max_epochs * get_epoch_length(run)


def to_iterations(run: Run, epochs: int, iterations: int | None) -> int:
    """Return a length in iterations: `iterations`, or that of `epochs` if it is None.

    Raises:
        ConfigError: If the epoch length is required and unknown.
    """
    if iterations is not None:
        return iterations
    # The epoch length is required only if there is something to convert.
    return epochs * get_epoch_length(run) if epochs else 0


def get_epoch_length(run: Run) -> int:
    """Return the number of iterations of an epoch.

    Raises:
        ConfigError: If the training loader has no length.
    """
    length = run.epoch_length
    if length is None:
        raise ConfigError(
            "The conversion of epochs to iterations requires the length of the training loader, which is unknown. "
            "Set the length in the unit of the limit of the run, or pass a `train_loader` with a length to "
            "`bus.run()`."
        )
    return length
