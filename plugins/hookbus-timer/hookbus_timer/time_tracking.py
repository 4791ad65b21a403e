"""Time tracking: durations of epochs, remaining time and finish time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hookbus import Hook, Needs, Priority, Run
from hookbus.checkpoint import schema
from hookbus.errors import HookError, format_path
from hookbus.writers import (
    AppendOnlyFile,
    is_plain_file,
    iter_numbered_paths,
    open_regular_file,
    resolve_output_path,
    set_aside,
)
from hookbus_timer.config import TimeTrackingConfig
from hookbus_timer.epoch_timer import EpochTimer

MAX_LINE_BYTES, SECONDS_PER_HOUR = 1000, 3600

UNKNOWN = "unknown"
"""Text for an unknown duration or time."""


def append_line(path: Path, line: str) -> None:
    """Append one line; the directory and the file are created if they do not exist.

    Raises:
        OSError: If the line cannot be written; the file is unchanged. A link or a FIFO is refused.
    """
    with closing(AppendOnlyFile(path)) as file:
        file.append(f"{line}\n".encode())


def read_first_line(path: Path) -> str:
    """Return the first line of a file, without the end of a long line; "" if it cannot be read."""
    try:
        with open_regular_file(path, follow=False) as file:
            return file.readline(MAX_LINE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def format_duration(seconds: float | None) -> str:
    """Format a duration as `4.2 s`, `0:01:02`, `1:02:03`, `2 d 3:04:05`, or `unknown`."""
    if seconds is None:
        return UNKNOWN
    # Rounded before the comparison, or else 59.96 would be formatted as "60.0 s".
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    days, clock = divmod(timedelta(seconds=round(seconds)), timedelta(days=1))
    return f"{days} d {clock}" if days else str(clock)


class TimeTrackingHook(Hook):
    """Log the duration of an epoch, the mean, the remaining time and the finish time.

    The duration of an epoch is measured from the end of the previous epoch, and includes training, validation and
    checkpoints. The mean continues after a resume; the time in between and truncated epochs are excluded.

    Attributes:
        timer: Function that returns a time in seconds, of which only differences are used; default
            `time.perf_counter`.
        wall_clock: Function that returns the seconds since 1970; default `time.time`.
    """

    Config = TimeTrackingConfig
    priority = Priority.HIGHEST
    observer = True
    ranks = "main"
    unit = "epoch"
    needs = Needs(points=("after_epoch",))
    config: TimeTrackingConfig
    state_schema = schema.record(
        {
            "epochs": schema.integer(),
            "iterations": schema.integer(),
            "seconds": schema.number(0, finite=True),
            "begin": schema.nullable(schema.list_of(schema.number(), 2, 2)),
            "is_whole": schema.boolean,
            "spent": schema.number(finite=True),
        },
        {"first_line": schema.string(maximum=1 << 20)},
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.timer: Callable[[], float] = time.perf_counter
        self.wall_clock: Callable[[], float] = time.time
        self._times = EpochTimer()
        self._file: Path | None = None
        self._current: tuple[Path, str] | None = None  # file and run of this process
        self._first_line = ""

    @property
    def output_paths(self) -> dict[str, str]:
        """Path of the file, if lines are appended to one."""
        return {"log_path": self.config.log_path} if self.config.log_to_file else {}

    def check(self, run: Run) -> None:
        """Check that no other hook writes to the same file.

        Raises:
            ConfigError: If another hook has the same `log_path`.
        """
        self.check_unique(
            run,
            f"writes to {self.config.log_path}",
            "Set another `log_path`.",
            setting="log_path",
            get_value=lambda hook: Path(hook.config.log_path) if hook.config.log_to_file else None,
        )

    # -- measuring -----------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Reset the durations if the run starts from scratch."""
        if not run.iters_done:
            self._times = EpochTimer()

    def before_train(self, run: Run) -> None:
        """Start measuring, and determine the path of the file."""
        self._start(run)
        self._file = self._choose_file(run) if self.config.log_to_file else None

    def after_val(self, run: Run) -> None:
        """Exclude the sanity-check validation before training."""
        if run.sanity_checking:
            self._start(run)

    def after_epoch(self, run: Run) -> None:
        """Log the epoch, unless it was truncated."""
        if not run.epoch_complete:
            return
        seconds = self._times.end_epoch(self.timer(), run.epochs_done, run.iters_done)
        if seconds is not None:
            self._report(run, seconds)

    def after_run(self) -> None:
        """Stop measuring until the next run."""
        self._times.stop(self.timer())

    def _start(self, run: Run) -> None:
        at_boundary = not run.epoch_open or run.iters_done == run.epoch_first_iter
        self._times.start(self.timer(), run.epochs_done, run.iters_done, at_boundary=at_boundary)

    # -- reporting -----------------------------------------------------------------------------

    def _report(self, run: Run, seconds: float) -> None:
        remaining = self._times.estimate_remaining(
            epochs=None if run.max_epochs is None else run.max_epochs - run.epochs_done,
            iterations=None if run.max_iters is None else run.max_iters - run.iters_done,
        )
        values = {"time/epoch": seconds, "time/epoch_mean": self._times.mean}
        if remaining is not None:
            values["time/remaining_hours"] = remaining / SECONDS_PER_HOUR
        run.bus.emit("log_scalars", values=values)
        line = self._format_line(run, seconds, remaining)
        # The table of hookbus-logger in a terminal contains the time of the epoch, and its bar the remaining time.
        run.logger.info("%s", line, extra={"is_in_table": True})
        if self._file is not None:
            self._append(self._file, line)

    def _format_line(self, run: Run, seconds: float, remaining: float | None) -> str:
        limit = "" if run.max_epochs is None else f"/{run.max_epochs}"
        finish = UNKNOWN if remaining is None else _format_time(self.wall_clock() + remaining)
        return (
            f"epoch {run.epochs_done}{limit}: {format_duration(seconds)}, mean {format_duration(self._times.mean)}, "
            f"remaining {format_duration(remaining)}, finish {finish}"
        )

    def _append(self, path: Path, line: str) -> None:
        try:
            append_line(path, f"{_format_time(self.wall_clock())} {line}")
        except OSError as error:
            raise HookError(
                f"{self.name}: the line of this epoch could not be appended to {format_path(path)} ({error}) and "
                "is only in the log. Free disk space, or set another `log_path`."
            ) from error

    def _choose_file(self, run: Run) -> Path:
        """Return the file of the run: `log_path`, or a numbered name if a file that it has not written has the name."""
        path = resolve_output_path(run, self.name, "log_path", self.config.log_path, parent="logs_dir")
        file = next(name for name in iter_numbered_paths(path) if not os.path.lexists(name) or self._owns(run, name))
        is_new = not os.path.lexists(file)
        run.register_output(file, "time of each epoch")
        if not is_new and not run.resumed and not run.iters_done and self._current != (file, run.id):
            set_aside(run, file)  # of a training that was stopped before its first checkpoint
        if file != path and is_new:
            run.logger.warning(
                "%s: %s was not written by this run and is not changed; the lines are written to %s. Move the file, or "
                "set another `log_path`.",
                self.name,
                format_path(path),
                file.name,
            )
        self._current = (file, run.id)
        return file

    def _owns(self, run: Run, path: Path) -> bool:
        """Return whether the run has written a file: in the work directory, in this process, or by its first line."""
        if not is_plain_file(path):
            return False
        is_of_checkpoint = bool(run.resumed and self._first_line) and read_first_line(path) == self._first_line
        return self._current == (path, run.id) or is_of_checkpoint or run.register_output(path)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the totals of the timed epochs, the time of the current epoch, and the first line of the file."""
        first_line = self._first_line if self._file is None else read_first_line(self._file)
        return {**self._times.state_dict(self.timer()), "first_line": first_line}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._times.load_state_dict(state)
        self._first_line = state.get("first_line", "")  # absent in earlier checkpoints


def _format_time(seconds: float) -> str:
    """Format a time as local time, to the second."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
