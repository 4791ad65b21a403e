"""View of the clock from one point: the numbers of each unit that its event starts or completes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hookbus._events.points import Point, Unit
from hookbus._run.clock import Clock

# Points before the optimizer step of their iteration or before the iterations of their epoch. The current number is one
# more than the number of completed units at these points.
BEFORE_UPDATE = frozenset(
    {
        "before_train_iter",
        "after_forward",
        "after_backward",
        "before_optimizer_step",
        "before_train_epoch",
        "before_epoch",
    }
)

AFTER_EPOCH = ("after_train_epoch", "after_epoch")


class PointCounters:
    """View of the clock from one point, as used by schedules.

    Args:
        clock: Clock of the run.
        point: The point.
        run: The run, which conditions read. Default: None, for schedules that read the clock only.

    Attributes:
        clock: Clock of the run.
        run: The run.
        unit: Unit of the point.
    """

    __slots__ = ("_ahead", "_closes_epoch", "_has_unit", "_opens_epoch", "_point", "clock", "run", "unit")

    def __init__(self, clock: Clock, point: Point, run: Any = None) -> None:
        self.clock, self.run, self._point = clock, run, point
        self.unit: Unit = point.unit or "iter"
        self._has_unit = point.unit is not None
        self._ahead = int(point.name in BEFORE_UPDATE)
        self._closes_epoch = point.name in AFTER_EPOCH
        self._opens_epoch = self._ahead == 1 and self.unit == "epoch"

    def get_counter(self, unit: Unit) -> tuple[str, int, int] | None:
        """Return how to compute the numbers of a unit from an attribute of the clock.

        Returns:
            Name of the attribute, and the offsets that yield the smallest and the largest number of an event. None if
            no attribute determines the numbers, so that each event must be evaluated.
        """
        ahead = self._ahead
        match unit:
            case "iter" if self.unit == "epoch":
                return "iters_done", ahead, ahead
            case "iter" | "epoch" | "batch":
                return unit, 1, 1
            case "step" if self.unit != "batch":
                return "steps_done", ahead, ahead if self.unit == "step" else 1
            case "sample" if not ahead:
                return "samples_done", 0, int(self.unit == "iter")
            case "token" if self.unit in ("iter", "step"):
                return "tokens.seen", 0, 0
        return None

    def is_counted(self, unit: Unit | None) -> bool:
        """Return whether the unit is counted at this event; False for the epoch if it was truncated."""
        return (unit or self.unit) != "epoch" or not self._closes_epoch or self.clock.epoch_complete

    def current(self, unit: Unit | None) -> int:
        """Return the current number, from 1; 0 if there is none."""
        unit, clock = unit or self.unit, self.clock
        match unit:
            case "epoch":
                return clock.epoch + 1 if self.is_counted(unit) else 0
            case "iter" if self.unit == "epoch":
                return clock.iters_done + self._ahead
            case "step" if self._ahead or self.unit == "step":
                return clock.steps_done + self._ahead
            case "sample":
                return self._sample_range()[0] if self.unit == "iter" else clock.samples_done + self._ahead
            case "token":
                return self._token_range()[0] if self.unit == "iter" else clock.tokens.done + self._ahead
            case "seconds":
                return self.range(unit)[1] + 1
        return clock.current(unit)

    def range(self, unit: Unit | None) -> tuple[int, int]:
        """Return the first and last number that this event starts or completes; first > last if there is none."""
        unit, clock = unit or self.unit, self.clock
        if not self.is_counted(unit):
            return 1, 0
        if unit == "seconds":
            return self._second_range()
        if unit == "token":
            return self._token_range()
        if unit == "step" and self.unit in ("iter", "batch") and self._has_unit:
            return self._step_range()
        if unit == "sample" and self.unit == "iter":
            return self._sample_range()
        # The end of an epoch completes all iterations, steps and samples of the epoch.
        if self._closes_epoch and unit in ("iter", "step", "sample"):
            return getattr(clock, f"epoch_first_{unit}") + 1, getattr(clock, f"{unit}s_done")
        number = self.current(unit)
        return number, number

    def counts(self, unit: Unit) -> bool:
        """Return whether the run counts a unit; it counts tokens if it knows how."""
        return unit != "token" or self.clock.counts_tokens

    def limit(self, unit: Unit | None) -> int | None:
        """Return the last number of the run, None if it is unknown."""
        return self.clock.limit(unit or self.unit)

    def next_limit_change(self, unit: Unit, number: int) -> int | None:
        """Return the first number after `number` at which the limit may change, None if it is fixed.

        The limit in iterations is an estimate until an epoch ends, because the epoch may have more iterations than its
        loader has batches. `TrainingData` invalidates the schedules if it has fewer.
        """
        length = self.clock.epoch_length
        if unit != "iter" or length is None or self.limit(unit) is None:
            return None
        return max(self.clock.epoch_first_iter + length, number) + 1

    @property
    def loader_name(self) -> str | None:
        """Name of the validation or test loader that is being read, None if it has none."""
        if self.run is None:
            return None
        name: str | None = self.run.validations.loader_name
        return name

    @property
    def loader_names(self) -> Collection[str] | None:
        """Names of the loaders of the point, None if they are unknown, as in a custom loop."""
        if self.run is None:
            return None
        loader = self.run.test_loader if "_test_" in self._point.name else self.run.val_loader
        if isinstance(loader, Mapping):
            return loader
        # The loaders of a Trainer are known, and a single one has no name.
        return None if loader is None or self.run.trainer is None else ()

    def _step_range(self) -> tuple[int, int]:
        clock = self.clock
        if not self._ahead:
            return (clock.steps_before + 1, clock.steps_done) if clock.stepped else (1, 0)
        # Before the optimizer step, a step belongs to its first micro-batch, so that a schedule is due once per step.
        first_of_step = clock.iters_since_step == 0
        return (clock.steps_done + 1,) * 2 if first_of_step else (1, 0)

    def _sample_range(self) -> tuple[int, int]:
        clock = self.clock
        if self._ahead:
            return clock.samples_done + 1, clock.samples_done + clock.batch_samples
        return clock.samples_done - clock.batch_samples + 1, clock.samples_done

    def _second_range(self) -> tuple[int, int]:
        clock = self.clock
        if self._closes_epoch:
            return clock.epoch_first_second + 1, clock.whole_seconds
        if self._opens_epoch:
            return clock.epoch_seconds_before + 1, clock.epoch_first_second
        return clock.seconds_before + 1, clock.seconds_seen

    def _token_range(self) -> tuple[int, int]:
        tokens = self.clock.tokens
        if self._closes_epoch:
            return tokens.epoch_first + 1, tokens.done
        if self._opens_epoch:
            return tokens.epoch_before + 1, tokens.epoch_first
        if self.unit == "step":
            return (tokens.step_seen + 1, tokens.seen) if self._ahead else (tokens.step_before + 1, tokens.step_seen)
        return tokens.before + 1, tokens.seen
