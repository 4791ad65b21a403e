"""Collection of the values of a row of the table from the events of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hookbus import Run
from hookbus_logger.epoch_recorder import get_epoch, has_epochs
from hookbus_logger.epoch_table import OPTIMIZER_VALUES, Row
from hookbus_logger.format import format_compact, format_count


@dataclass
class _PendingRow:
    iteration: int
    step: int
    unit: str
    position: str
    values: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None


class RowCollector:
    """Collect values until the run continues, so that a row contains all values of an iteration and the final bests.

    Args:
        run: Active run.
        print_row: Function that receives the rows.
        by_epoch: Whether positions of a run with epochs are epochs; iterations otherwise.
    """

    def __init__(self, run: Run, print_row: Callable[[Row], None], *, by_epoch: bool = True) -> None:
        self._run, self._print_row, self._by_epoch = run, print_row, by_epoch
        self._pending: _PendingRow | None = None
        self._known = set(run.best)
        self._epoch_start: float | None = None

    @property
    def has_epoch_events(self) -> bool:
        """Whether an epoch ends with `after_epoch`; false in a loop that emits events of iterations only."""
        return self._epoch_start is not None

    def begin_epoch(self) -> None:
        """Start measuring the time of an epoch."""
        self._epoch_start = self._run.seconds

    def add(self, values: Mapping[str, float]) -> None:
        """Add values of the current iteration; a name that the row already contains starts another row."""
        pending = self._pending
        if pending is not None and (
            pending.iteration != self._run.iters_done or not pending.values.keys().isdisjoint(values)
        ):
            self.flush()
        if self._pending is None:
            self._pending = self._begin_row()
        self._pending.values.update(values)

    def end_epoch(self, values: Mapping[str, float]) -> None:
        """Add the values of an epoch, and its time."""
        self.add(values)
        assert self._pending is not None
        self._pending.unit, self._pending.position = get_position(self._run, by_epoch=self._by_epoch)
        if self._epoch_start is not None:
            self._pending.seconds = self._run.seconds - self._epoch_start

    def flush(self) -> None:
        """Print the row, if there is one."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        bests = {name: best for name, best in self._run.best.items() if name in self._known}
        # The first value of a metric is no improvement.
        improved = {
            name
            for name, best in bests.items()
            if best.step == pending.step and pending.values.get(name, math.nan) == best.value
        }
        self._known.update(self._run.best)
        seconds = pending.seconds if self.has_epoch_events and counts_epochs(self._run) else self._run.seconds
        self._print_row(Row(pending.position, pending.values, seconds, frozenset(improved), pending.unit))

    def _begin_row(self) -> _PendingRow:
        unit, position = get_position(self._run, by_epoch=self._by_epoch)
        return _PendingRow(self._run.iters_done, self._run.steps_done, unit, position)


def counts_epochs(run: Run) -> bool:
    """Return whether the run has epochs and is limited in epochs, or not at all."""
    is_limited = run.max_iters is not None or run.max_tokens is not None
    return (run.max_epochs is not None or not is_limited) and (has_epochs(run) or not run.iters_done)


def get_position(run: Run, *, by_epoch: bool = True) -> tuple[str, str]:
    """Return the unit and the position of a run, such as ("epoch", "2/6").

    Within an epoch, the position is a fraction, such as "1.50/6", or "2/6 it 50" if the length of the epoch is unknown.
    """
    if run.max_tokens is not None:
        return "tokens", f"{format_compact(run.tokens_done)}/{format_compact(run.max_tokens)}"
    if not (by_epoch and counts_epochs(run)):
        return "iteration", format_count(run.iters_done, get_iteration_limit(run))
    is_within = run.epoch_open and run.iters_done > run.epoch_first_iter
    if not is_within:
        return "epoch", format_count(run.epochs_done, run.max_epochs)
    length = run.epoch_length
    if not length:
        return "epoch", f"{format_count(get_epoch(run), run.max_epochs)} it {run.iters_done - run.epoch_first_iter}"
    done = run.epochs_done + (run.iters_done - run.epoch_first_iter) / length
    limit = "" if run.max_epochs is None else f"/{run.max_epochs}"
    # Rounded down: 1.996 epochs are not 2.
    return "epoch", f"{math.floor(done * 100) / 100:.2f}{limit}"


def get_iteration_limit(run: Run) -> int | None:
    """Return the last iteration of a run; None if it is unknown."""
    # A loop without epochs never approaches a limit in epochs: the last iteration would grow with each one.
    return run.limit("iter") if has_epochs(run) or not run.iters_done else run.max_iters


def get_widest_position(run: Run) -> str:
    """Return a text as wide as the last positions of a run, or "" if its limit is unknown."""
    if run.max_tokens is not None:
        return f"99.9k/{format_compact(run.max_tokens)}"
    limit = run.max_epochs if run.max_epochs is not None else run.max_iters
    return "" if limit is None else format_count(0, limit)


def get_position_width(run: Run) -> int:
    """Return the width in characters of the column of epochs."""
    return max(len("epoch"), len(format_count(get_epoch(run), run.max_epochs)))


def merge_equal_values(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of the optimizers, with one value of each quantity for which all parameter groups agree."""
    merged: dict[str, float] = {}
    for quantity in OPTIMIZER_VALUES:
        groups = {name: value for name, value in values.items() if name.partition("/")[0] == quantity}
        distinct = set(groups.values())
        merged |= {quantity: distinct.pop()} if len(distinct) == 1 else groups
    return merged
