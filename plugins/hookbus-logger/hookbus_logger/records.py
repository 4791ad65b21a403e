"""When is a record of training due? The one place that decides, for every hook here that writes such records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus import Hook, Priority, Run, every, hookimpl
from hookbus.metrics import Metrics, Window
from hookbus.records.rates import named_rates, rates_of
from hookbus.when import Schedule
from hookbus_logger.config import RecordConfig

__all__ = ["RecordingHook", "epoch_of"]


def _interval(config: Any) -> Schedule:
    return every(config.interval, unit="batch" if config.by_epoch else "iter")


class RecordingHook(Hook):
    """Asks for the means over an interval when a record is due, and hands them to `write_record`.

    A record is due every `interval` iterations, counted within the epoch where `by_epoch`. What is left at the end of
    such an epoch is dropped with `ignore_last`, unless the epoch has no record yet; what is left at the end of the run
    becomes a record, unless a checkpoint keeps it for a run that goes on. Without `by_epoch` the end of an epoch means
    nothing.
    """

    Config = RecordConfig
    priority = Priority.NORMAL
    observer = True
    ranks = "main"
    config: RecordConfig
    _rates: list[Any]

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._forget()

    def write_record(self, run: Run, metrics: Metrics, step: int, rates: Mapping[str, float]) -> None:
        """Write one record of training.

        Args:
            run: the run, with its clock where the record stands.
            metrics: the means over the interval, by full name.
            step: the updates made so far.
            rates: the learning rates that the last iteration used: `lr`, or `lr/0`, `lr/1`, ... by parameter group.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how a record is written")

    # -- listening -----------------------------------------------------------------------------

    def before_run(self, run: Run, mode: str) -> None:
        """Open the window, so that nothing is missed from the first iteration on."""
        if not run.iters_done:
            self._forget()
        if mode == "train":
            self._window(run)

    def before_train(self, run: Run) -> None:
        """A record that waited for an update when the checkpoint was taken waits again."""
        if self._waiting:
            self._ask(run)

    def before_train_epoch(self, run: Run) -> None:
        """Drop what is left of the epoch before, unless it is on its way into a record."""
        begins = run.iters_done == run.clock.epoch_first_iter
        if begins and self.config.by_epoch and not self._waiting:
            self._window(run).reset()

    def before_train_iter(self, run: Run) -> None:
        """Note the learning rates that this iteration uses."""
        # At every one: that an iteration was the last shows only afterwards, when the scheduler has moved on.
        self._rates = rates_of(run.optimizer)

    @hookimpl(when=_interval)
    def after_train_iter(self, run: Run) -> None:
        """An interval is complete."""
        self._record(run)

    def after_train_epoch(self, run: Run) -> None:
        """Record what is left, where it is not to be dropped."""
        only = self._recorded_epoch != run.epoch
        of_epoch = self.config.by_epoch and run.epoch_complete and (only or not self.config.ignore_last)
        if (of_epoch or run.clock.at_limit) and self._window(run):
            self._record(run)

    def after_train(self, run: Run) -> None:
        """Record what is left where the run was stopped, unless a checkpoint keeps it for the run that goes on."""
        if self._window(run) and not run.resumable:
            self._record(run)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Which epoch has a record, whether one waits for an update, and the latest learning rates."""
        return {
            "recorded_epoch": self._recorded_epoch,
            "waiting": self._waiting,
            "rates": [float(rate) for rate in self._rates],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._recorded_epoch, self._waiting = state["recorded_epoch"], state["waiting"]
        self._rates = list(state["rates"])

    # -- inside --------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._recorded_epoch, self._waiting, self._rates = -1, False, []

    def _window(self, run: Run) -> Window:
        return run.metrics.window(self.name)

    def _record(self, run: Run) -> None:
        self._recorded_epoch = run.epoch
        self._ask(run)

    def _ask(self, run: Run) -> None:
        self._waiting = True
        run.request_record(self._window(run), self._deliver)

    def _deliver(self, metrics: Metrics, step: int) -> None:
        self._waiting = False
        self.write_record(self.run, metrics, step, named_rates(self._rates))


def epoch_of(run: Run) -> int:
    """The number, from 1, of the epoch to which the last iteration belongs; 0 before the first iteration."""
    clock = run.clock
    return run.epochs_done + (clock.epoch_open and run.iters_done > clock.epoch_first_iter)
