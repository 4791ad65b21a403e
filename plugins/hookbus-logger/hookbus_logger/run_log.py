"""Log of a run: its file, its position in a checkpoint, and the rows that a resumed run writes again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookbus import Run
from hookbus.checkpoint import remove_temporary_files
from hookbus.writers import set_aside
from hookbus_logger.json_lines import JsonLines, LogPosition, Row, iter_rows
from hookbus_logger.paths import find_log, register_new_log
from hookbus_logger.rows import get_identity, get_sort_key, has_equal_content

POSITION_FIELDS = ("mode", "step", "epoch", "iteration")
"""Fields that locate a row in the run; rows with equal values are sorted by kind."""

OPENING_POINTS = {"before_run", "before_train"}
EPOCH_OPENING_POINTS = {"before_epoch", "before_train_epoch"}
"""Points that a run repeats when it resumes, and those that it repeats when it resumes within an epoch."""


def open_log(run: Run, path: Path, position: LogPosition | None, current: Path | None) -> JsonLines:
    """Open the log of a run: `path`, or another name if a file that is not a log of this run has the name.

    Args:
        position: Position in the checkpoint of which the run resumes; None if there is none.
        current: File that this process has written for the run; None if there is none.

    Raises:
        OSError: If the file cannot be opened.
    """
    name = "" if position is None else position.name
    log = find_log(run, path, name, current, lambda file: position is not None and position.is_in(file))
    if log is None:
        log = register_new_log(run, path, "or set another `path`")
    # A run that starts at iteration 0 keeps the log of a training that was stopped before its first checkpoint.
    elif run.mode == "train" and not run.resumed and log != current and any(map(_is_training, iter_rows(log))):
        set_aside(run, log)  # separate validations and tests write no rows of a training
    run.register_output(log, "metrics as JSON lines")
    remove_temporary_files(log.parent, run.id)
    return JsonLines(log, run.id)


def truncate_log(run: Run, log: JsonLines, position: LogPosition | None) -> None:
    """Remove the rows of training that were written after the checkpoint of which a run resumes.

    Args:
        position: Position in the checkpoint; None if the checkpoint does not contain it.
    """
    is_listed = run.register_output(log.path)
    if position is not None and (position.is_in(log.path) or (is_listed and not position.first)):
        _truncate_to_position(log, position)
    elif is_listed and run.work_dir is not None and run.work_dir.recorded_run in ("", run.id):
        # The log of the run without a position of its own, which the checkpoint determines by its step.
        log.filter_rows(lambda _, row: not _is_training(row) or _get_step(row) <= run.steps_done)


class OpeningRows:
    """Rows that hooks write again when a run resumes, such as the configuration."""

    def __init__(self, run: Run, log: JsonLines) -> None:
        self._run, self._start = run, (run.epochs_done, run.iters_done)
        self._newest = {get_identity(row): row for row in iter_rows(log.path) if _is_training(row)}
        is_within_epoch = run.epoch_open and run.iters_done > run.epoch_first_iter
        self._points = OPENING_POINTS | (EPOCH_OPENING_POINTS if is_within_epoch else set())

    def is_repeated(self, row: Row) -> bool:
        """Return whether the log contains a row of an opening event: any of its names, an equal configuration."""
        newest = self._newest.get(get_identity(row))
        return newest is not None and (row["kind"] != "config" or has_equal_content(row, newest))

    def is_at_start(self) -> bool:
        """Return whether the run is still before its first iteration, or before the end of an epoch without one."""
        run = self._run
        return (run.epochs_done, run.iters_done) == self._start and not run.mid_iteration

    def is_opening(self) -> bool:
        """Return whether the run is in an event that it repeats."""
        return not self._points.isdisjoint(self._run.open_points)


def _truncate_to_position(log: JsonLines, position: LogPosition) -> None:
    """Remove the rows after a position, and continue its moment."""
    # The interrupted run may have inserted later rows between those of the checkpoint's moment, so these rows are
    # matched by key and not by number.
    complete, open_keys = position.rows - len(position.keys), list(position.keys)

    def is_retained(number: int, row: Row) -> bool:
        if number < complete or not _is_training(row):
            return True
        return _get_position(row) == position.moment and _consume_key(row, open_keys)

    log.filter_rows(is_retained)
    if position.keys and log.rows == position.rows:
        log.reopen_moment(position.moment, position.keys)


def _is_training(row: Row) -> bool:
    return bool(row.get("mode", "train") == "train")


def _get_step(row: Row) -> float:
    step = row.get("step")
    return step if isinstance(step, int) else 0


def _get_position(row: Row) -> Row:
    return {name: row.get(name) for name in POSITION_FIELDS}


def _consume_key(row: Row, keys: list[Any]) -> bool:
    """Return whether the key of a row is in the list, and remove that key."""
    key = get_sort_key(row)
    if key not in keys:
        return False
    keys.remove(key)
    return True
