"""The iteration timer: iteration and data time, throughput and remaining time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

from hookbus import Hook, Needs, Priority, Run, hookimpl
from hookbus.checkpoint import schema
from hookbus.metrics import get_peak_flops
from hookbus_timer.config import IterTimerConfig
from hookbus_timer.matrix_products import get_device_name, infer_precision
from hookbus_timer.measured_flops import MeasuredFlops
from hookbus_timer.throughput import ThroughputWindow

TimedIteration = tuple[float, float | None]
"""One iteration: duration and data time in seconds (None if unknown)."""


class IterTimerHook(Hook):
    """Log the time of training iterations, the throughput and the remaining time.

    The hook runs outermost: the work of other hooks in an iteration is included. Validations, tests, checkpoints and
    work between two epochs are excluded. The device is not synchronized, so means are correct but single times are not.

    Attributes:
        timer: Function that returns a time in seconds, of which only differences are used; default
            `time.perf_counter`.
    """

    Config = IterTimerConfig
    priority = Priority.HIGHEST
    observer = True
    ranks = "main"
    config: IterTimerConfig
    state_schema = schema.record(
        {"recorded_at": schema.integer(-1), "is_due": schema.boolean},
        {"flops": schema.integer(), "world_size": schema.integer(1)},
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.timer: Callable[[], float] = time.perf_counter
        self._interval = self.config.interval
        self._windowed_timer = WindowedTimer(self._interval)
        self._throughput = ThroughputWindow(self.config.window_size)
        self._peak_flops: float | None = None
        self._measured_flops = MeasuredFlops() if self.config.flops_per_batch == "measure" else None
        self._tokens = 0  # total at the end of the last iteration
        self._is_due = False
        self._logged_step = -1

    @property
    def needs(self) -> Needs:
        """The start of iterations, if the operations of one are measured."""
        return Needs(points=() if self._measured_flops is None else ("before_train_iter",))

    # -- measuring -----------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Reset the state if the run starts from scratch."""
        if not run.iters_done:
            self._is_due, self._logged_step = False, -1
            if self._measured_flops is not None:
                self._measured_flops.value = None

    def before_train(self, run: Run) -> None:
        """Start measuring, also after a resume."""
        self._windowed_timer.clear()
        self._throughput.clear()
        self._tokens, self._peak_flops = run.tokens_done, self._find_peak_flops(run)
        self._windowed_timer.start(self.timer())

    @hookimpl(frequency=False)
    def before_train_epoch(self) -> None:
        """Exclude the time between two epochs."""
        self._windowed_timer.start(self.timer())

    @hookimpl(frequency=False)
    def before_train_iter(self) -> None:
        """Measure the data time."""
        self._windowed_timer.end_fetch(self.timer())
        if self._measured_flops is not None:
            self._measured_flops.begin_iteration()

    @hookimpl(frequency=False)
    def after_train_iter(self, run: Run) -> None:
        """Measure the iteration, and log the means since the last log every `interval` iterations.

        The means are also logged at the end of an epoch in which they were not logged, and at the end of the run. If no
        optimizer step was made in the iteration, they are logged in the iteration of the next step.
        """
        has_pending = run.pending
        samples = 0 if run.should_skip_iter else run.batch_samples * run.ranks.world_size
        # Pending requests are processed after this event and can synchronize the device, which is not data time.
        if self._measured_flops is not None and self._measured_flops.end_iteration(run.should_skip_iter):
            self._windowed_timer.start(self.timer())  # an iteration that counts its operations takes longer
            self._check_flops(run)
        else:
            seconds = self._windowed_timer.end_iteration(self.timer(), fetches_next=not has_pending)
            self._throughput.add(seconds, samples, 0 if run.should_skip_iter else run.tokens_done - self._tokens)
        self._tokens = run.tokens_done
        ends_epoch = run.epoch_iter + 1 == run.expected_epoch_length
        ends_run = run.is_at_limit or (ends_epoch and run.epoch + 1 == run.max_epochs)
        is_unlogged_epoch = ends_epoch and self._logged_step <= run.epoch_first_step
        if run.iters_done % self._interval == 0 or ends_run or is_unlogged_epoch:
            self._is_due = True
        if self._is_due and run.stepped:
            self._log_values(run)
            if not has_pending:  # excludes the time that the writers need for this record
                self._windowed_timer.start_fetch(self.timer())

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Log the last iterations of a run whose end was unknown."""
        # Here and not in `after_train`: the loggers write their last record after this event.
        if run.is_at_limit or run.stops:
            self._log_rest(run)

    def after_train(self, run: Run) -> None:
        """Log the iterations since the last log, unless a resumed run continues with them."""
        self._log_rest(run)

    def before_val(self) -> None:
        """Exclude the time until the end of the validation, test or checkpoint."""
        self._windowed_timer.pause(self.timer())

    before_test = before_predict = before_save_checkpoint = before_val

    def after_val(self, run: Run) -> None:
        """Continue measuring, and log the duration of the validation."""
        seconds = self._windowed_timer.resume(self.timer())
        if not run.sanity_checking:
            run.bus.emit("log_scalars", values={"time/val": seconds})

    def after_test(self, run: Run) -> None:
        """Continue measuring, and log the duration of the test."""
        run.bus.emit("log_scalars", values={"time/test": self._windowed_timer.resume(self.timer())})

    def after_predict(self, run: Run) -> None:
        """Continue measuring, and log the duration of the prediction."""
        run.bus.emit("log_scalars", values={"time/predict": self._windowed_timer.resume(self.timer())})

    def after_save_checkpoint(self) -> None:
        """Continue measuring."""
        self._windowed_timer.resume(self.timer())

    def cleanup(self) -> None:
        """Stop counting operations in an iteration that failed."""
        if self._measured_flops is not None:
            self._measured_flops.cancel()

    # -- logging -------------------------------------------------------------------------------

    def get_values(self, run: Run) -> dict[str, float]:
        """Return the current values by full name, without unknown ones."""
        values, remaining = self._windowed_timer.means, self._get_remaining(run)
        if self.config.log_eta and values and remaining is not None:
            values["time/eta"] = remaining * values["time/iter"]
        if run.counts_tokens:
            values["progress/tokens"] = run.tokens_done
        return values | self._throughput.compute_rates(
            world_size=run.ranks.world_size,
            flops_per_batch=self._get_flops(),
            peak_flops=self._peak_flops,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last log, whether a log is due, and the measured number of operations."""
        state = {"recorded_at": self._logged_step, "is_due": self._is_due}
        flops = None if self._measured_flops is None else self._measured_flops.value
        return state if flops is None else {**state, "flops": flops, "world_size": self.run.ranks.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._logged_step, self._is_due = state["recorded_at"], state["is_due"]
        # With another number of ranks, a micro-batch has another size.
        if self._measured_flops is not None and state.get("world_size") == self.run.ranks.world_size:
            self._measured_flops.value = state["flops"]

    def _log_values(self, run: Run) -> None:
        self._is_due, self._logged_step = False, run.steps_done
        # The remaining time is estimated from the window, which may be longer than the last interval.
        values = self.get_values(run) | self._windowed_timer.interval_means
        self._windowed_timer.end_interval()
        run.bus.emit("log_scalars", values=values)

    def _log_rest(self, run: Run) -> None:
        """Log the iterations since the last log, unless a resumed run continues with them."""
        if self._windowed_timer and run.steps_done != self._logged_step and not run.resumable:
            self._log_values(run)

    def _check_flops(self, run: Run) -> None:
        """Log a warning if no operation was counted."""
        if self._measured_flops is not None and self._measured_flops.value == 0:
            run.logger.warning(
                "%s: an iteration executed no operation that is counted, got flops_per_batch='measure'. Execute the "
                "model between before_train_iter and after_train_iter, or set the number.",
                self.name,
            )

    def _get_flops(self) -> float | None:
        """Return the floating-point operations of a micro-batch, None if they are unknown."""
        flops = self.config.flops_per_batch
        return flops if self._measured_flops is None else self._measured_flops.value  # type: ignore[return-value]

    def _find_peak_flops(self, run: Run) -> float | None:
        """Return the peak FLOP/s of the device, None if it or the data type is unknown."""
        config = self.config
        if config.flops_per_batch is None or config.peak_flops is not None:
            return config.peak_flops
        # A custom loop may use autocast, which its parameters do not show.
        known = config.precision is not None or run.trainer is not None
        precision = config.precision or infer_precision(run.model, getattr(run.trainer, "precision", "fp32"))
        return get_peak_flops(get_device_name(run.device), precision) if known and precision is not None else None

    def _get_remaining(self, run: Run) -> int | None:
        """Return the number of remaining iterations; 0 if a stop was requested, None if unknown."""
        if run.stops:
            return 0
        last = run.expected_last_iter
        return None if last is None else last - run.iters_done


def compute_means(iterations: Collection[TimedIteration]) -> dict[str, float]:
    """Compute the mean times of iterations in seconds, by full metric name; without unknown values.

    The data time is the mean over the iterations with a known data time.
    """
    if not iterations:
        return {}
    times, data = zip(*iterations, strict=True)
    waits = [wait for wait in data if wait is not None]
    # `fsum`, so that the mean does not depend on the order of the iterations.
    means = {"time/iter": math.fsum(times) / len(iterations)}
    if waits:
        means["time/data"] = math.fsum(waits) / len(waits)
    return means


class WindowedTimer:
    """Timer of the last iterations, from the end of the previous iteration to the end of each.

    Times are in seconds of any monotonic clock.

    Args:
        size: Number of iterations in the window.
    """

    def __init__(self, size: int) -> None:
        self._iterations: deque[TimedIteration] = deque(maxlen=size)
        self._last_end = 0.0  # end of the last iteration, plus the pauses since then
        self._fetch_started_at: float | None = None
        self._data_seconds: float | None = None
        self._paused_at = 0.0
        self._interval = 0  # number of iterations since `end_interval`

    def __bool__(self) -> bool:
        """Return whether the interval contains an iteration."""
        return self._interval > 0

    @property
    def means(self) -> dict[str, float]:
        """Means over the window, see `compute_means`."""
        return compute_means(self._iterations)

    @property
    def interval_means(self) -> dict[str, float]:
        """Means over the interval, that is, the iterations in the window since the last call of `end_interval`."""
        first = max(len(self._iterations) - self._interval, 0)
        return compute_means(list(islice(self._iterations, first, None)))

    def end_interval(self) -> None:
        """Start a new interval; the window is unchanged."""
        self._interval = 0

    def clear(self) -> None:
        """Remove all iterations from the window."""
        self._iterations.clear()
        self._interval = 0

    def start(self, now: float) -> None:
        """Start timing: the first iteration starts with fetching its data."""
        self._last_end = self._fetch_started_at = now

    def end_fetch(self, now: float) -> None:
        """End fetching data for the current iteration."""
        since = self._fetch_started_at
        self._data_seconds = None if since is None else now - since

    def end_iteration(self, now: float, *, fetches_next: bool) -> float:
        """End the current iteration, and return its duration in seconds.

        Args:
            fetches_next: Whether the data of the next iteration is fetched from now on, without other work in between.
        """
        seconds = now - self._last_end
        self._iterations.append((seconds, self._data_seconds))
        self._interval += 1
        self._last_end, self._data_seconds = now, None
        self._fetch_started_at = now if fetches_next else None
        return seconds

    def start_fetch(self, now: float) -> None:
        """Start fetching the data of the next iteration; the time since `end_iteration` is not data time."""
        self._fetch_started_at = now

    def pause(self, now: float) -> None:
        """Exclude the time until `resume`."""
        self._paused_at = now

    def resume(self, now: float) -> float:
        """End the pause, start fetching data, and return the duration of the pause in seconds."""
        # An iteration that ended during the pause (`end_iteration` after `pause`) contains the first part of the pause.
        self._last_end += now - max(self._paused_at, self._last_end)
        self._fetch_started_at = now
        return now - self._paused_at
