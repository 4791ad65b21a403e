"""Where does the last part of a training begin? In epochs or in iterations, never in a mixture."""

from __future__ import annotations

from dataclasses import dataclass

from hookbus import Run
from hookbus.errors import ConfigError

__all__ = ["Border", "epoch_length", "last_part"]


@dataclass(frozen=True)
class Border:
    """The first epoch, or the first iteration, of a part; indices from 0. Neither: the part never begins."""

    epoch: int | None = None
    iteration: int | None = None

    def reached(self, epoch: int, iteration: int) -> bool:
        """Whether this iteration of this epoch belongs to the part."""
        if self.epoch is not None:
            return epoch >= self.epoch
        return self.iteration is not None and iteration >= self.iteration


def last_part(run: Run, epochs: int, iterations: int | None) -> Border:
    """Where the last part of a run begins.

    Args:
        run: the run; its limit says where the part ends.
        epochs: how long it is, unless that is said in iterations.
        iterations: how long it is in iterations; None where that is said in epochs.

    Raises:
        ConfigError: the limit of the run is not known in the unit that is needed.
    """
    if (epochs if iterations is None else iterations) == 0:
        return Border()
    if iterations is None and run.max_epochs is not None:
        return Border(epoch=run.max_epochs - epochs)
    total = run.max_iters
    if total is None:
        if run.max_epochs is None:
            raise ConfigError(["The last part of a run without a limit never begins: give epochs= or iterations=."])
        total = run.max_epochs * epoch_length(run)
    return Border(iteration=total - (epochs * epoch_length(run) if iterations is None else iterations))


def epoch_length(run: Run) -> int:
    """The number of iterations of an epoch.

    Raises:
        ConfigError: it is not known.
    """
    length = run.clock.epoch_length
    if length is None:
        raise ConfigError(
            [
                "Epochs and iterations cannot be compared, since the training loader does not tell its length: say it "
                "in the unit of the run's limit, or give bus.run a train_loader= that has a length."
            ]
        )
    return length
