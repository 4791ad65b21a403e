"""Base class of the monitors, which log their own values, aligned to optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from hookbus import Hook, Run, hookimpl
from hookbus_system_monitor.readings import Reader


class MonitorHook(Hook):
    """Log values when they are due, at most once per optimizer step.

    A record that is due within a gradient accumulation is logged at the next optimizer step.
    """

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._reset_records()

    def collect_values(self, run: Run) -> Mapping[str, float]:
        """Return the values of a record by full name; {} if there is nothing to log.

        Called once per record.

        Raises:
            NotImplementedError: If the subclass does not override this method.
        """
        raise NotImplementedError(f"{type(self).__name__}: `collect_values` is not implemented.")

    def after_train_iter(self, run: Run) -> None:
        """Log the values; within an accumulation, defer them to the next optimizer step."""
        self._is_due = True
        if run.stepped:
            self._record(run)

    @hookimpl(frequency=False)
    def after_optimizer_step(self, run: Run) -> None:
        """Log a deferred record."""
        if self._is_due:
            self._record(run)

    def _reset_records(self) -> None:
        """Start a run: no record is due, and no value has been reported as unavailable."""
        self._is_due, self._last_record_step = False, -1
        self._reader = Reader(self._log_warning)

    def _log_warning(self, text: str) -> None:
        self.run.logger.warning("%s: %s", self.name, text)

    def _record(self, run: Run) -> None:
        self._is_due = False
        if run.steps_done == self._last_record_step:
            return
        values = self.collect_values(run)
        if values:
            self._last_record_step = run.steps_done
            run.bus.emit("log_scalars", values=values)

    def check_settings(self, run: Run, settings: Sequence[str]) -> None:
        """Check that no other hook of the same class has the same of the given settings enabled.

        Raises:
            ConfigError: If another hook has, because both would log different values under the same names.
        """
        for setting in settings:
            remedy, get_value = f"Set `{setting}: false` for one of them.", attrgetter(f"config.{setting}")
            self.check_unique(run, "logs these values", remedy, setting=setting, get_value=get_value)
