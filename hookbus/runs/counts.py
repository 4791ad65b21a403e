"""Progress of a run: the counts of its clock, as hooks read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookbus.clock import Clock

__all__ = ["ProgressMixin"]


class ProgressMixin:
    """Read-only access to the clock of a run.

    Attributes:
        clock: Clock of the run.
    """

    __slots__ = ()  # `Run` has slots, and a base class without them would add a `__dict__`
    clock: Clock

    @property
    def epochs_done(self) -> int:
        """Number of completed epochs."""
        return self.clock.epochs_done

    @property
    def iters_done(self) -> int:
        """Number of completed iterations, that is, micro-batches."""
        return self.clock.iters_done

    @property
    def steps_done(self) -> int:
        """Number of optimizer steps: the step of all logged values."""
        return self.clock.steps_done

    @property
    def samples_done(self) -> int:
        """Number of samples that were trained on."""
        return self.clock.samples_done

    @property
    def epoch(self) -> int:
        """Index, from 0, of the epoch in progress or just completed."""
        return self.clock.epoch

    @property
    def iter(self) -> int:
        """Index, from 0, of the iteration in progress or just completed."""
        return self.clock.iter

    @property
    def stepped(self) -> bool:
        """Whether this iteration executed an optimizer step."""
        return self.clock.stepped

    @property
    def epoch_complete(self) -> bool:
        """Whether the epoch reached its end; False if a stop request truncated it."""
        return self.clock.epoch_complete

    @property
    def max_epochs(self) -> int | None:
        """Limit in epochs; None if there is none."""
        return self.clock.max_epochs

    @property
    def max_iters(self) -> int | None:
        """Limit in iterations; None if there is none."""
        return self.clock.max_iters
