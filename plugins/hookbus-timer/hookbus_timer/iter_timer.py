"""The iteration timer: how long iterations take, what of it is waiting for data, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hookbus import Hook, Priority
from hookbus.run import Run
from hookbus_timer.config import IterTimerConfig
from hookbus_timer.laps import Laps
from hookbus_timer.rates import iterations_left

__all__ = ["IterTimerHook"]


class IterTimerHook(Hook):
    """Records the time of training iterations, the throughput and the time left.

    It is the outermost hook: what the others do at an iteration is part of it. Validations, tests, checkpoints and what
    is done between two epochs are not. The device is never waited for, so means are right, single times are not.

    Attributes:
        timer: returns seconds; only differences are used.
    """

    Config = IterTimerConfig
    priority = Priority.HIGHEST
    observer = True
    ranks = "main"
    config: IterTimerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.timer: Callable[[], float] = time.perf_counter
        self._interval = self.config.interval
        self._laps = Laps(self._interval)
        self._is_due = False
        self._recorded_at = -1
        self._epoch_length: int | None = None  # as it was seen, for loaders that do not know

    # -- measuring -----------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Forget an earlier run and its loader, where this one begins afresh."""
        if not run.iters_done:
            self._epoch_length, self._is_due, self._recorded_at = None, False, -1

    def before_train(self) -> None:
        """Begin to measure; after a resume as well."""
        self._laps.clear()
        self._laps.begin(self.timer())

    def before_train_epoch(self) -> None:
        """Leave out what was done between two epochs."""
        self._laps.begin(self.timer())

    def before_train_iter(self) -> None:
        """Note how long the data took."""
        self._laps.fetched(self.timer())

    def after_train_iter(self, run: Run) -> None:
        """Note how long the iteration took, and record the last ones where that is due.

        Due is every `interval`, and the end of an epoch without any record; without an update it waits for the next.
        """
        clock, settles = run.clock, run.pending
        samples = 0 if run.should_skip_iter else clock.batch_samples * run.ranks.world_size
        # What is settled after this event may wait for the device, which must not look like waiting for data.
        self._laps.end(self.timer(), samples, fetches_next=not settles)
        ends_epoch = clock.batch + 1 == (clock.epoch_length or self._epoch_length)
        if clock.iters_done % self._interval == 0 or (ends_epoch and self._recorded_at <= clock.epoch_first_step):
            self._is_due = True
        if self._is_due and clock.stepped:
            self._record(run)
            if not settles:
                self._laps.fetch_from(self.timer())

    def after_train_epoch(self, run: Run) -> None:
        """Remember how long it was."""
        if run.epoch_complete:
            self._epoch_length = run.iters_done - run.clock.epoch_first_iter

    def after_train(self, run: Run) -> None:
        """Record the iterations since the last record, if there are any and no other run goes on with them."""
        if self._laps and run.steps_done != self._recorded_at and not run.resumable:
            self._record(run)

    def before_val(self) -> None:
        """Pause."""
        self._laps.pause(self.timer())

    before_test = before_save_checkpoint = before_val

    def after_val(self, run: Run) -> None:
        """Go on, and record the time of the validation apart."""
        seconds = self._laps.go_on(self.timer())
        if not run.sanity_checking:
            run.bus.emit("log_scalars", values={"time/val": seconds})

    def after_test(self, run: Run) -> None:
        """Go on, and record the time of the test apart."""
        run.bus.emit("log_scalars", values={"time/test": self._laps.go_on(self.timer())})

    def after_save_checkpoint(self) -> None:
        """Go on."""
        self._laps.go_on(self.timer())

    # -- recording -----------------------------------------------------------------------------

    def values(self, run: Run) -> dict[str, float]:
        """What a record of the last iterations would hold now, by full name; what is not known is left out."""
        rates = self._laps.rates
        values, eta = rates.named(), rates.time_for(self._left(run))
        return {**values, "time/eta": eta} if self.config.log_eta and eta is not None else values

    def state_dict(self) -> dict[str, Any]:
        """How long an epoch is, as far as it was seen; the step of the last record, and whether one waits."""
        return {"epoch_length": self._epoch_length, "recorded_at": self._recorded_at, "is_due": self._is_due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._epoch_length, self._recorded_at = state["epoch_length"], state["recorded_at"]
        self._is_due = state["is_due"]

    def _record(self, run: Run) -> None:
        self._is_due, self._recorded_at = False, run.steps_done
        run.bus.emit("log_scalars", values=self.values(run))

    def _left(self, run: Run) -> int | None:
        """How many iterations are left; none once the run has agreed to stop."""
        if run.stops:
            return 0
        clock = run.clock
        return iterations_left(
            iterations_done=run.iters_done,
            max_iterations=run.max_iters,
            epochs_done=run.epochs_done,
            max_epochs=run.max_epochs,
            iterations_in_epoch=run.iters_done - clock.epoch_first_iter if clock.epoch_open else 0,
            epoch_length=clock.epoch_length or self._epoch_length,
        )
