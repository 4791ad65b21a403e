"""Resume a run from a checkpoint: search, verification and restore.

A run that has committed a checkpoint never starts over: if none of its checkpoints can be used, the search raises an
error that lists what is wrong with each file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._run.finalize import write_status
from hookbus._run.recorded_run import RecordedRun
from hookbus._run.status import CHECKPOINT, STATUS
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.checkpoint.sidecars import read_sidecar
from hookbus.errors import CheckpointError, ConfigError, format_path

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.distributed.collectives import Collectives


Resume = str | Path | Mapping[str, Any]
"""What a run resumes from: "auto", "never", the path of a checkpoint, or the result of `get_run_state`."""

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


def find_resumed_checkpoint(run: Run) -> Path | None:
    """Return the checkpoint of an automatic resume, before the run begins and before any file is modified.

    The run takes the ID of the run that the work directory records: files of that run remain its own, also if it
    restarts from iteration 0. Called on every rank; rank 0 decides.

    Returns:
        The checkpoint; None if the recorded run has not committed any, or no run is recorded.

    Raises:
        ConfigError: If the recorded run has committed checkpoints, and none of them can be used.
        CheckpointError: If neither the run has a work directory nor a hook has a directory for checkpoints.
    """
    # On rank 0 only: on a network file system the ranks may see different files.
    checkpoint, run.id = run.ranks.call_on_main("the checkpoint to resume from", partial(_find_checkpoint, run))
    if checkpoint is None:
        return None
    for problem in checkpoint.problems:
        run.logger.warning("resume: %s", format_path(problem))
    if run.work_dir is not None:
        # A status that was missing or invalid did not contain the path.
        run.work_dir.record_checkpoint(checkpoint.path)
    return checkpoint.path


def verify_resume(resume: Resume, ranks: Collectives) -> Resume:
    """Verify the checkpoint to resume from, unless it is chosen automatically. Called before a directory is locked.

    Returns:
        "auto", "never", the path of the checkpoint or the state of a run.

    Raises:
        CheckpointError: If the checkpoint does not exist or is corrupted, or the state is not that of a run.
    """
    if isinstance(resume, Mapping):
        from hookbus.checkpoint.run_state import check_run_state

        check_run_state(resume)
        return resume
    if resume in ("auto", "never"):
        return resume
    return ranks.call_on_main("the checkpoint", partial(_verify, resume))


def resume_run(run: Run, source: str | Path | Mapping[str, Any] | None) -> None:
    """Restore a run from a verified checkpoint, or from a state of hooks and loop, and log its position.

    Raises:
        CheckpointError: If the checkpoint is not compatible with the run.
    """
    if isinstance(source, Mapping):
        resume_from_state(run, source)
        return
    path = None if source is None else Path(source)
    # A hook may have set the directory in `before_run`.
    path = path or find_resumed_checkpoint(run)
    if path is None and run.mode != "train":
        searched = ", ".join(map(format_path, get_checkpoint_directories(run)))
        raise CheckpointError(
            f'resume: no checkpoint to evaluate, got "auto" in {searched}. Train first, or pass the path of a '
            "checkpoint."
        )
    if path is None:
        _report_restart(run)
        return
    from hookbus.checkpoint import state
    from hookbus.distributed.sharding import sharding_of

    checkpoint = state.read_checkpoint(path, sharding=sharding_of(run.model), verify=False)
    # Before the restore: hooks may convert a checkpoint of an older version.
    run.bus.fire("after_load_checkpoint", checkpoint=checkpoint, path=path)
    with state.prefix_path(path):
        state.restore_checkpoint(run, checkpoint)
    run.iteration_gap.record_resume()
    _locate_best_files(run, path.parent)
    _report_position(run, format_path(path))


def resume_from_state(run: Run, state: Mapping[str, Any]) -> None:
    """Restore the hooks and the loop of a run, whose owner has restored the rest, and log its position.

    Raises:
        CheckpointError: If the state does not match the run.
    """
    from hookbus.checkpoint.run_state import set_run_state

    content = dict(state)
    # Before the restore: hooks may convert the state of an older version.
    run.bus.fire("after_load_checkpoint", checkpoint=content, path=None)
    set_run_state(run, content)
    owner = "the state of a run" if run.host is None else f"a checkpoint of {run.host.capabilities.host}"
    _report_position(run, owner)


def find_recorded_run(resume: Mapping[str, Any], work_dir: str | Path | None) -> str:
    """Return the ID of the run whose state is resumed, if the work directory contains that run; otherwise ""."""
    run = resume["loop"].get("id", "")
    return run if work_dir and run == RecordedRun.read(Path(work_dir)).run else ""


def get_checkpoint_directory(run: Run) -> Path | None:
    """Return the checkpoint directory of a run, as the saver reports it; None if it is unknown.

    The directory need not exist and is not created.
    """
    saver: Any = run.get("checkpoint_saver")
    return Path(saver.directory(run)) if callable(getattr(saver, "directory", None)) else run.checkpoint_directory


def get_checkpoint_directories(run: Run) -> list[Path]:
    """Return the directories that an automatic resume searches, in this order.

    Multiple hooks may write checkpoints, each to its own directory. That of the saver is the first. If no hook has its
    own directory, the default one is searched.
    """
    hooks = [hook for hook in run.bus.hooks.values() if isinstance(hook, CheckpointSaver)]
    directories = [Path(hook.directory(run)) for hook in hooks if hasattr(hook, "directory")]
    if not directories or run.get("checkpoint_saver") is not None:
        first = get_checkpoint_directory(run)
        directories = [*([first] if first is not None else []), *directories]
    return list(dict.fromkeys(directories))


def find_checkpoint(directories: Iterable[Path], work_dir: Path | None) -> FoundCheckpoint | None:
    """Return the newest valid checkpoint of a run. Checksums are verified, and no file is modified.

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
    status = recorded.status.fields
    may_have_committed = recorded.is_training and (CHECKPOINT not in status or status[CHECKPOINT] is not None)
    if problems or may_have_committed:
        raise _unusable_error(searched, problems, work_dir, recorded)
    return None


def _locate_best_files(run: Run, directory: Path) -> None:
    """Set the paths of the best files, stored relative to directories that may have been renamed or copied."""
    directories = [run.work_dir.path] if run.work_dir is not None else []
    with suppress(CheckpointError, ConfigError):  # a validation or test without a work directory writes no checkpoints
        directories += get_checkpoint_directories(run)
    directories.append(directory)
    run.best.update({metric: best.locate(directories) for metric, best in run.best.items()})


def _find_checkpoint(run: Run) -> tuple[FoundCheckpoint | None, str]:
    """Return the checkpoint of an automatic resume, and the ID of the run that is continued."""
    directories = get_checkpoint_directories(run)
    if not directories:
        raise CheckpointError('resume: "auto" requires a work directory, got none. Set `work_dir`.')
    checkpoint = find_checkpoint(directories, None if run.work_dir is None else run.work_dir.path)
    recorded = "" if run.work_dir is None else run.work_dir.recorded_run
    return checkpoint, recorded or (checkpoint.run if checkpoint is not None else "") or run.id


def _report_position(run: Run, source: str) -> None:
    write_status(run)
    run.logger.info(
        "Resumed from %s: epoch %s, iteration %s, step %s.", source, run.epochs_done, run.iters_done, run.steps_done
    )


def _report_restart(run: Run) -> None:
    """Log that a recorded run restarts because it had not saved any checkpoint."""
    if run.work_dir is not None and run.work_dir.recorded_status:
        run.logger.warning(
            "resume: the run in %s stopped before it saved a checkpoint (%s iterations are recorded). Training "
            "restarts from iteration 0, and the logs of that run are kept under another name.",
            format_path(run.work_dir.path),
            run.work_dir.recorded_status.get("iters_done", 0),
        )


def _verify(checkpoint: str | Path) -> Path:
    """Return the path of a checkpoint after its checksum has been verified."""
    from hookbus.checkpoint.load import resolve_path, verify_checkpoint

    path = resolve_path(checkpoint)
    verify_checkpoint(path)
    return path


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
    return ConfigError("\n".join([message, *_shorten(details)]))


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
