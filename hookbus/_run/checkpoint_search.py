"""Search for the checkpoint from which an automatic resume continues.

A run that has committed a checkpoint never starts over: if none of its checkpoints can be used, the search raises an
error that lists what is wrong with each file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookbus._run.recorded_run import RecordedRun
from hookbus._run.status import CHECKPOINT, STATUS
from hookbus.checkpoint.sidecars import read_sidecar
from hookbus.errors import CheckpointError, ConfigError, format_path

MAX_LISTED_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """Checkpoint from which an automatic resume continues.

    Attributes:
        path: Path of the checkpoint.
        run: ID of the run that wrote it; "" if its sidecar does not contain it.
        problems: A message for each file that was skipped.
    """

    path: Path
    run: str
    problems: list[str]


def find_checkpoint(directories: Iterable[Path], work_dir: Path | None) -> FoundCheckpoint | None:
    """Return the newest valid checkpoint of a run. Checksums are verified, and no file is modified.

    Args:
        directories: Directories to search, in this order.
        work_dir: Work directory of the run; None if it has none.

    Returns:
        The checkpoint; None if the run has not committed any.

    Raises:
        ConfigError: If the run has committed checkpoints, or may have done so, and none of them can be used.
    """
    searched, problems = list(directories), list[str]()
    recorded = RecordedRun() if work_dir is None else RecordedRun.read(work_dir)
    for directory in searched:
        path, skipped = _search(directory, recorded.run)
        problems += skipped
        if path is not None:
            return FoundCheckpoint(path, _get_run(path), problems)
    if problems or _may_have_committed(recorded):
        raise _unusable_error(searched, problems, work_dir, recorded)
    return None


def _search(directory: Path, run: str) -> tuple[Path | None, list[str]]:
    """Return the newest valid checkpoint of a run in a directory, and the problems of other files."""
    from hookbus.checkpoint.state import find_missing_files

    problems: list[str] = []
    try:
        if not directory.exists():
            return None, []
        os.listdir(directory)  # raises, unlike `glob`
        if reason := _find_ambiguity(directory, run):
            return None, [reason]
        for path, reason in _iter_evaluated(directory, run):
            if not reason:
                return path, problems + find_missing_files(directory)
            problems.append(reason)
    except OSError as error:
        problems.append(f"{directory}: cannot be read: {error.strerror or error}.")
    return None, problems


def _iter_evaluated(directory: Path, run: str) -> Iterator[tuple[Path, str]]:
    """Yield the checkpoints of a run, each with the reason why a run cannot resume from it, "" if it can."""
    from hookbus.checkpoint.state import check_keys, iter_checkpoints

    # Checksums are verified without allocating tensors.
    for path, checkpoint, reason in iter_checkpoints(directory, run, map_location="meta"):
        try:
            if checkpoint is not None:
                check_keys(checkpoint)  # not the version: a hook may convert it in `after_load_checkpoint`
        except CheckpointError as error:
            reason = f"{path}: {error}"
        yield path, reason


def _find_ambiguity(directory: Path, run: str) -> str:
    """Return why the checkpoints of a run cannot be identified; "" if they can, or if there is only one run."""
    runs = {_get_run(path) for path in directory.glob("[!.]*.pth")} - {""}
    if run or len(runs) <= 1:
        return ""
    return (
        f"{directory}: contains checkpoints of {len(runs)} runs, and no {STATUS} that contains the ID of one of them. "
        "Pass the path of a checkpoint."
    )


def _get_run(path: Path) -> str:
    """Return the ID of the run that wrote a file, according to its sidecar; "" without one."""
    sidecar = read_sidecar(path)
    return "" if sidecar is None else sidecar.run


def _may_have_committed(recorded: RecordedRun) -> bool:
    """Return whether the recorded run may have committed checkpoints."""
    status = recorded.status.fields
    return recorded.is_training and (CHECKPOINT not in status or status[CHECKPOINT] is not None)


def _unusable_error(
    searched: list[Path], problems: list[str], work_dir: Path | None, recorded: RecordedRun
) -> ConfigError:
    """Return the error of a run whose checkpoints cannot be used."""
    places = ", ".join(map(format_path, searched))
    finding = (
        f"no checkpoint in {places} can be used" if problems else f"no checkpoint of that run was found in {places}"
    )
    subject = ""
    remedy = "Restore that directory or correct `out_dir`, or set `resume` to the path of a checkpoint"
    if work_dir is not None and recorded.is_training:
        subject = f"{_describe_recorded_run(work_dir, recorded.status.fields)}, but "
        remedy += ", or pass `--overwrite` (`overwrite=True`) to remove the recorded run"
    details = [*problems, *_describe_other_files(searched, recorded.run)]
    message = f"resume: {subject}{finding}. {remedy}. Nothing was modified."
    return ConfigError(["\n".join([message, *_shorten(details)])])


def _shorten(details: list[str]) -> list[str]:
    """Return the indented lines of a list of at most `MAX_LISTED_PROBLEMS` messages."""
    lines = [f"  {format_path(detail)}" for detail in details[:MAX_LISTED_PROBLEMS]]
    more = len(details) - len(lines)
    return [*lines, f"  and {more:,} more"] if more else lines


def _describe_other_files(searched: Iterable[Path], run: str) -> Iterator[str]:
    """Yield a message for each checkpoint that was deleted, or that belongs to another run."""
    from hookbus.checkpoint.state import find_missing_files

    for directory in searched:
        with suppress(OSError):  # a directory that cannot be read is a problem that is listed already
            yield from find_missing_files(directory)
            foreign = [path for path in directory.glob("[!.]*.pth") if run and _get_run(path) not in ("", run)]
            yield from (f"{path}: belongs to another run." for path in sorted(foreign))


def _describe_recorded_run(work_dir: Path, status: Mapping[str, Any]) -> str:
    """Return the beginning of the error for a recorded run."""
    shown = format_path(work_dir / STATUS)
    if not status:
        return f"{format_path(work_dir)} contains a run whose {STATUS} is missing or invalid"
    counts = f"{status.get('epochs_done')} epochs and {status.get('iters_done')} iterations"
    saved = status.get(CHECKPOINT)
    if saved is None and CHECKPOINT in status:
        return f"{shown} records a run with {counts}"
    return f"{shown} records a run with {counts} that " + (
        f"saved {format_path(work_dir / str(saved))}" if CHECKPOINT in status else "may have saved checkpoints"
    )
