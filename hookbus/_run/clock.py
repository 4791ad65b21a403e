"""Clock of a run: counts, indices, limits and training time.

The bus advances the clock from the emitted events, in the Trainer and in custom loops alike. Counts (`iters_done`, ...)
are numbers of completed units; indices (`epoch`, `iter`) count the current unit from 0. A count advances immediately
before its `after_*` event: at the first `after_train_iter`, `iters_done` is 1 and `iter` is 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from hookbus._events.points import Unit
from hookbus._run.tokens import TokenCounts
from hookbus.data.batch_sizes import batch_size


@dataclass(slots=True, eq=False, repr=False)
class Clock:
    """Counts of one run.

    `Run` documents the attributes that it provides.

    Attributes:
        batch: Index, from 0, of the batch within its loader, at validation and test points.
        epoch_truncated: Whether the epoch ended before the end of its loader.
        iter_open: Whether a training iteration is in progress.
        limit_reached: Whether the last iteration was number `max_iters`.
        synced_seconds: Training time in whole seconds, synchronized across ranks; None in a single process.
        counts_seconds: Whether a schedule counts seconds, so that each iteration reads the timer.
        counts_tokens: Whether tokens are counted.
        tokens: Counts of tokens.
        steps_before: Number of optimizer steps before the current or last iteration.
        seconds_before, seconds_seen: Whole seconds read by the previous and by the current or last iteration.
        epoch_seconds_before, epoch_first_second: Whole seconds at the start of the previous and of the current or last
            epoch.
        measure_batch: Function that returns the number of samples of a batch, None if it is unknown.
        timer: Function that returns the time in seconds.
        is_data_exhausted: Function that returns whether all data of the epoch is read; None if this is unknown.
    """

    timer: Callable[[], float] = time.perf_counter
    epochs_done: int = 0
    iters_done: int = 0
    steps_done: int = 0
    samples_done: int = 0
    epoch: int = 0
    iter: int = 0
    batch: int = 0
    stepped: bool = False
    epoch_complete: bool = False
    epoch_truncated: bool = False
    epoch_first_iter: int = 0
    epoch_first_step: int = 0
    epoch_first_sample: int = 0
    epoch_open: bool = False
    max_epochs: int | None = None
    max_iters: int | None = None
    epoch_length: int | None = None
    observed_epoch_length: int | None = None
    iter_open: bool = False
    limit_reached: bool = False
    counts_iterations: bool = True
    synced_seconds: int | None = None
    counts_seconds: bool = False
    steps_before: int = 0
    seconds_before: int = 0
    seconds_seen: int = 0
    epoch_seconds_before: int = 0
    epoch_first_second: int = 0
    batch_samples: int = 0
    counts_tokens: bool = False
    tokens: TokenCounts = field(default_factory=TokenCounts)
    measure_batch: Callable[[Any], int | None] = batch_size
    is_data_exhausted: Callable[[], bool | None] = lambda: None
    _seconds: float = 0.0
    _started_at: float | None = None
    _steps_at_last_iter: int = 0
    _iter_at_last_step: int = 0
    _batch_open: bool = False

    # Keys of the checkpoint format: a new name breaks existing checkpoints.
    STATE_FIELDS = (
        "epochs_done",
        "iters_done",
        "steps_done",
        "samples_done",
        "epoch_open",
        "epoch_first_iter",
        "epoch_first_step",
        "epoch_first_sample",
        "epoch_first_second",
        "epoch_seconds_before",
        "counts_seconds",
        "seconds_before",
        "seconds_seen",
        "stepped",
        "steps_before",
    )

    # -- updated by the bus ----------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Start an epoch, or continue the epoch that a resumed run left open."""
        self.epoch = self.epochs_done
        self.epoch_complete = self.epoch_truncated = False
        if not self.epoch_open:
            self.epoch_open = True
            self.epoch_first_iter = self.iters_done
            self.epoch_first_step = self.steps_done
            self.epoch_first_sample = self.samples_done
            self.epoch_seconds_before, self.epoch_first_second = self.epoch_first_second, self.whole_seconds
            self.tokens.begin_epoch()

    def end_epoch(self) -> None:
        """End the epoch and count it unless it was truncated. Idempotent."""
        if self.epoch_open and not self.epoch_truncated:
            self.epoch_open = False
            self.epoch_complete = True
            self.epochs_done = self.epoch + 1
            self.tokens.end_epoch()

    def begin_iter(self, batch: Any) -> None:
        """Start an iteration."""
        self.iter = done = self.iters_done
        self.batch = done - self.epoch_first_iter
        self.stepped = False
        if self.counts_tokens:
            self.tokens.begin_iter(batch)
        self.batch_samples = self.measure_batch(batch) or 0
        self.iter_open = True
        if self.counts_seconds:
            self.seconds_before, self.seconds_seen = self.seconds_seen, self.whole_seconds

    def end_iter(self, batch: Any) -> None:
        """Complete an iteration."""
        # A custom loop may emit `after_train_iter` only, or pass the batch only there.
        if not self.iter_open:
            self.begin_iter(batch)
        elif not self.batch_samples:
            self.batch_samples = self.measure_batch(batch) or 0
        self.iter_open = False
        self.iters_done = done = self.iter + 1
        self.samples_done += self.batch_samples
        if self.counts_tokens:
            self.tokens.end_iter(batch)
            self.limit_reached = self.limit_reached or self.tokens.is_at_limit
        # Compared with the count after the last iteration, because a loop may step the optimizer between iterations.
        steps, before = self.steps_done, self._steps_at_last_iter
        if self.counts_iterations:
            self.steps_done = steps = steps + 1
        self.steps_before, self._steps_at_last_iter = before, steps
        self.stepped = steps != before
        if steps != before:
            self._iter_at_last_step = done
        self.limit_reached = self.limit_reached or done == self.max_iters
        if self.limit_reached or self.epoch_truncated:  # a trainer may have completed the epoch since a stop
            self.truncate_epoch()

    def truncate_epoch(self) -> None:
        """Mark the epoch as truncated, because the run ends after this iteration, unless all of its data is read."""
        exhausted = self.is_data_exhausted()
        if exhausted is None:
            exhausted = self.iters_done - self.epoch_first_iter == self.epoch_length
        self.epoch_truncated = self.epoch_open and not exhausted

    def set_batch(self, batch_idx: int | None, *, opening: bool) -> None:
        """Set the index of a validation or test batch at its start or end."""
        if batch_idx is not None:
            self.batch = batch_idx
        # Without an index, count once per batch, whether the loop emits both points or only `after_*_iter`.
        elif opening or not self._batch_open:
            self.batch += 1
        self._batch_open = opening

    def leave_evaluation(self) -> None:
        """Leave the batch of a validation or test whose end the loop does not emit."""
        self._batch_open = False

    def leave_iteration(self) -> None:
        """Leave the iteration, or the batch of a validation, that a failed run did not complete."""
        self.iter_open = self._batch_open = False

    def count_step(self) -> None:
        """Count an optimizer step."""
        self.steps_done += 1
        self.stepped = True
        if self.counts_tokens:
            self.tokens.count_step()

    def add_tokens(self, counts: list[int]) -> None:
        """Add the tokens of all ranks since the last synchronization, and end the run if they reach its limit."""
        self.tokens.add_ranks(counts)
        if self.tokens.is_at_limit and not self.limit_reached:
            self.limit_reached = True
            self.truncate_epoch()

    def count_seconds(self) -> None:
        """Start to count seconds for schedules; each second belongs to the iteration in which it elapses."""
        if not self.counts_seconds:
            self.counts_seconds = True
            self.seconds_before = self.seconds_seen = self.whole_seconds

    def start(self) -> None:
        """Start the training timer."""
        if self._started_at is None:
            self._started_at = self.timer()

    def stop(self) -> None:
        """Pause the training timer."""
        self._seconds = self.seconds
        self._started_at = None

    @property
    def is_timing(self) -> bool:
        """Whether the training timer is running."""
        return self._started_at is not None

    # -- read by schedules and hooks -------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Training time in seconds, including the time before a resume."""
        running = 0.0 if self._started_at is None else self.timer() - self._started_at
        return self._seconds + running

    @property
    def whole_seconds(self) -> int:
        """Training time in whole seconds as used by schedules, equal on all ranks."""
        return int(self.seconds) if self.synced_seconds is None else self.synced_seconds

    @property
    def is_at_limit(self) -> bool:
        """Whether the run has reached its limit."""
        return self.limit_reached or (self.max_epochs is not None and self.epochs_done >= self.max_epochs)

    def check_limits(self) -> None:
        """Determine whether the run has reached its limits in iterations or tokens, which may have changed."""
        is_complete = self.max_iters is not None and self.iters_done >= self.max_iters
        self.limit_reached = is_complete or self.tokens.is_at_limit

    @property
    def ends_within_epoch(self) -> bool:
        """Whether a run that ends now ends within an epoch, or has no epochs; False at the end of an epoch."""
        return self.epoch_truncated or not (self.epoch_open or self.epoch_complete)

    @property
    def iters_since_step(self) -> int:
        """Number of iterations since the last optimizer step; greater than 0 within an accumulation."""
        return self.iters_done - self._iter_at_last_step

    @property
    def steps_since_iter(self) -> int:
        """Number of optimizer steps since the end of the last iteration."""
        return self.steps_done - self._steps_at_last_iter

    @property
    def mid_iteration(self) -> bool:
        """Whether an iteration, or a batch of a validation, is in progress."""
        return self.iter_open or self._batch_open

    @property
    def epoch_iter(self) -> int:
        """Index, from 0, of the iteration within its epoch."""
        return self.iter - self.epoch_first_iter

    def current(self, unit: Unit) -> int:
        """Return the current or last number of a unit, from 1."""
        match unit:
            case "iter":
                return self.iter + 1
            case "batch":
                return self.batch + 1
            case "epoch":
                return self.epoch + 1
            case "step":
                return self.steps_done + (not self.stepped)
            case "sample":
                return self.samples_done
            case "token":
                return self.tokens.done
            case "seconds":
                return self.whole_seconds + 1

    def limit(self, unit: Unit) -> int | None:
        """Return the last number of the run in a unit, None if it is unknown."""
        if unit == "epoch":
            return self.max_epochs
        if unit == "token":
            return self.tokens.limit
        # The number of steps, samples, tokens or seconds per iteration is not known in advance.
        if unit != "iter" or self.tokens.limit is not None:
            return None
        return self._last_iter(self.epoch_length)

    @property
    def expected_epoch_length(self) -> int | None:
        """Number of iterations per epoch for estimates: that of the last complete epoch, or `epoch_length`."""
        return self.observed_epoch_length or self.epoch_length

    @property
    def expected_last_iter(self) -> int | None:
        """Last iteration of the run for estimates, None if it is unknown; at least the current iteration."""
        ends = (self._last_iter(self.expected_epoch_length), self.tokens.estimate_last_iter(self.iters_done))
        last = min((end for end in ends if end is not None), default=None)
        return None if last is None else max(last, self.iters_done)

    def _last_iter(self, epoch_length: int | None) -> int | None:
        """Return the last iteration of the run for a number of iterations per epoch, None if it is unknown."""
        ends = [] if self.max_iters is None else [self.max_iters]
        if self.max_epochs is not None and epoch_length is not None:
            # Relative to the current epoch: truncated epochs of a resumed run may have had fewer batches. None is
            # open in a loop without epochs.
            first = self.epoch_first_iter if self.epoch_open or not self.epochs_done else self.iters_done
            ends.append(first + (self.max_epochs - self.epochs_done) * epoch_length)
        return min(ends, default=None)

    # -- checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the training time as built-in Python types."""
        counts = {name: getattr(self, name) for name in self.STATE_FIELDS}
        tokens = {"tokens": self.tokens.state_dict()} if self.counts_tokens or self.tokens.done else {}
        return {**counts, "iter_at_last_step": self._iter_at_last_step, "seconds": self.seconds, **tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        for name in self.STATE_FIELDS:
            setattr(self, name, state[name])
        self._seconds = state["seconds"]
        self.tokens.load_state_dict(state.get("tokens", {}))
        self.epoch, self.iter = self.epochs_done, max(self.iters_done - 1, 0)
        self.batch = max(self.epoch_iter, 0)
        self._steps_at_last_iter = self.steps_done
        self._iter_at_last_step = state["iter_at_last_step"]
        # Not restored: the limits of the resumed run may be higher than those of the run that wrote the checkpoint.
        self.epoch_complete = self.epoch_truncated = self.limit_reached = False


def _read_clock(name: str) -> Any:
    """Return a read-only property of a run with the value of an attribute of its clock."""
    return property(attrgetter(f"clock.{name}"), doc=f"`{name}` of the clock.")


class ProgressMixin:
    """Read-only access to the clock of a run.

    Attributes:
        clock: Clock of the run.
    """

    __slots__ = ()  # `Run` has slots, and a base class without them would add a `__dict__`
    clock: Clock

    epochs_done: int = _read_clock("epochs_done")
    """Number of completed epochs."""
    iters_done: int = _read_clock("iters_done")
    """Number of completed iterations, that is, micro-batches."""
    steps_done: int = _read_clock("steps_done")
    """Number of optimizer steps: the step of all logged values."""
    global_step: int = _read_clock("steps_done")
    """Number of optimizer steps, the same as `steps_done`."""
    samples_done: int = _read_clock("samples_done")
    """Number of training samples processed."""
    batch_samples: int = _read_clock("batch_samples")
    """Number of training samples of the current or last micro-batch."""
    tokens_done: int = _read_clock("tokens.done")
    """Number of training tokens processed by all ranks; with multiple ranks up to their last synchronization."""
    batch_tokens: int = _read_clock("tokens.batch")
    """Number of training tokens of the current or last micro-batch of this rank; 0 if tokens are not counted."""
    counts_tokens: bool = _read_clock("counts_tokens")
    """Whether the run counts tokens."""
    epoch: int = _read_clock("epoch")
    """Index, from 0, of the epoch in progress or just completed."""
    iter: int = _read_clock("iter")
    """Index, from 0, of the iteration in progress or just completed."""
    stepped: bool = _read_clock("stepped")
    """Whether this iteration executed an optimizer step."""
    counts_iterations: bool = _read_clock("counts_iterations")
    """Whether each iteration counts as one step, because the run has no known optimizer."""
    mid_iteration: bool = _read_clock("mid_iteration")
    """Whether an iteration, or a batch of a validation, is in progress."""
    epoch_open: bool = _read_clock("epoch_open")
    """Whether an epoch was started and is not complete. A resumed run continues it."""
    epoch_complete: bool = _read_clock("epoch_complete")
    """Whether the epoch reached its end; False if a stop request truncated it."""
    epoch_first_iter: int = _read_clock("epoch_first_iter")
    """Number of iterations that were completed at the start of the epoch."""
    epoch_first_step: int = _read_clock("epoch_first_step")
    """Number of optimizer steps that were completed at the start of the epoch."""
    epoch_iter: int = _read_clock("epoch_iter")
    """Index, from 0, of the iteration within its epoch."""
    epoch_length: int | None = _read_clock("epoch_length")
    """Number of iterations per epoch; None if it is unknown."""
    observed_epoch_length: int | None = _read_clock("observed_epoch_length")
    """Number of iterations of the last complete epoch that was not left early; None if there is none."""
    expected_epoch_length: int | None = _read_clock("expected_epoch_length")
    """Number of iterations per epoch for estimates: that of the last complete epoch, or `epoch_length`."""
    expected_last_iter: int | None = _read_clock("expected_last_iter")
    """Last iteration of the run for estimates, None if it is unknown; at least the current iteration."""
    seconds: float = _read_clock("seconds")
    """Training time in seconds, including the time before a resume."""
    is_at_limit: bool = _read_clock("is_at_limit")
    """Whether the run has reached `max_epochs`, `max_iters` or `max_tokens`."""
    max_epochs: int | None = _read_clock("max_epochs")
    """Limit in epochs; None if there is none."""
    max_iters: int | None = _read_clock("max_iters")
    """Limit in iterations; None if there is none."""
    max_tokens: int | None = _read_clock("tokens.limit")
    """Limit in tokens of all ranks; None if there is none."""

    def current(self, unit: Unit) -> int:
        """Return the number of the unit in progress or just completed, from 1; the total for samples and tokens.

        Args:
            unit: "iter", "batch", "step", "epoch", "sample", "token" or "seconds".
        """
        return self.clock.current(unit)

    def limit(self, unit: Unit) -> int | None:
        """Return the last number of the run in a unit; None if it is unknown.

        Args:
            unit: Unit. The number of steps, samples and seconds is unknown before the run, that of iterations if the
                limit is in tokens.
        """
        return self.clock.limit(unit)
