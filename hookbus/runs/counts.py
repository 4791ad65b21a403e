"""Where a run is: its clock, as hooks read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookbus.clock import Clock

__all__ = ["Counts"]


class Counts:
    """What a run shows of its clock.

    Attributes:
        clock: the clock.
    """

    __slots__ = ()
    clock: Clock

    @property
    def epochs_done(self) -> int:
        """Epochs that are complete."""
        return self.clock.epochs_done

    @property
    def iters_done(self) -> int:
        """Micro-batches that are done."""
        return self.clock.iters_done

    @property
    def steps_done(self) -> int:
        """Optimizer updates that are made: the axis on which everything is recorded."""
        return self.clock.steps_done

    @property
    def samples_done(self) -> int:
        """Samples that were trained on."""
        return self.clock.samples_done

    @property
    def epoch(self) -> int:
        """The index, from 0, of the epoch in progress or just completed."""
        return self.clock.epoch

    @property
    def iter(self) -> int:
        """The index, from 0, of the iteration in progress or just completed."""
        return self.clock.iter

    @property
    def stepped(self) -> bool:
        """Whether this iteration has made an optimizer update."""
        return self.clock.stepped

    @property
    def epoch_complete(self) -> bool:
        """Whether the epoch reached its end; False for one that a stop has cut."""
        return self.clock.epoch_complete

    @property
    def max_epochs(self) -> int | None:
        """The limit in epochs, None where there is none."""
        return self.clock.max_epochs

    @property
    def max_iters(self) -> int | None:
        """The limit in iterations, None where there is none."""
        return self.clock.max_iters
