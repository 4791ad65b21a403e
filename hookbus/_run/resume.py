"""Resume a run from a checkpoint: search, verification and restore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._run.finalize import write_status
from hookbus._run.services import DIRECTORIES
from hookbus._run.work_dir import CHECKPOINT, STATUS, contains_training_run, read_status
from hookbus.checkpoint.atomic_files import read_sidecar
from hookbus.checkpoint.saver import is_saver
from hookbus.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = [
    "adopt_recorded_run",
    "check_checkpoints",
    "get_checkpoint_directories",
    "get_checkpoint_directory",
    "get_default_checkpoint_directory",
    "resume_run",
]


def adopt_recorded_run(run: Run) -> None:
    """Prepare an automatic resume, before the run begins and before any file is modified.

    The run takes the ID of the run that the work directory records: files of that run remain its own, also if it
    restarts from iteration 0. Called on every rank.

    Raises:
        ConfigError: If the recorded run has committed checkpoints, and none of them is found.
    """
    if run.work_dir is not None:
        run.id = run.ranks.call_on_main("the recorded run", partial(_check_run_id, run)) or run.id


def check_checkpoints(directories: Iterable[Path], work_dir: Path) -> None:
    """Check that checkpoints of a recorded run are found, unless its status states that it has not committed any.

    Args:
        directories: Directories that are searched.
        work_dir: Work directory of the recorded run.

    Raises:
        ConfigError: If none is found.
    """
    searched, status = list(directories), read_status(work_dir)
    if not contains_training_run(work_dir) or (CHECKPOINT in status and status[CHECKPOINT] is None):
        return
    if any(_may_belong_to(path, status) for directory in searched for path in directory.glob("[!.]*.pth")):
        return
    raise ConfigError(
        [
            f"resume: {_describe_recorded_run(work_dir, status)}, but no checkpoint of that run was found in "
            f"{', '.join(map(str, searched))}. Restore that directory or correct `out_dir`, or pass "
            "`--overwrite` (`overwrite=True`) to remove the recorded run. Nothing was modified."
        ]
    )


def resume_run(run: Run, resume: str | Path) -> None:
    """Restore a run from a checkpoint and log its position.

    Args:
        run: Run that has started.
        resume: Path of a checkpoint, or "auto" for the newest checkpoint of the run, if it has any.

    Raises:
        CheckpointError: If the checkpoint does not exist, is corrupted, or is not compatible with the run.
    """
    from hookbus.checkpoint import state
    from hookbus.distributed.sharding import sharding_of

    path = _find_newest(run) if resume == "auto" else _verify(run, resume)
    if path is None:
        _report_restart(run)
        return
    checkpoint = state.read_checkpoint(path, sharding=sharding_of(run.model), verify=False)
    # Before the restore: hooks may convert a checkpoint of an older version.
    run.bus.fire("after_load_checkpoint", checkpoint=checkpoint, path=path)
    state.restore_checkpoint(run, checkpoint)
    _locate_best_files(run, path.parent)
    write_status(run)
    run.logger.info(
        "Resumed from %s: epoch %s, iteration %s, step %s.", path, run.epochs_done, run.iters_done, run.steps_done
    )


def get_checkpoint_directory(run: Run) -> Path | None:
    """Return the checkpoint directory of a run, as the saver reports it; None if it is unknown.

    The directory need not exist and is not created.
    """
    directory_of = getattr(run.get("checkpoint_saver"), "directory", None)
    return get_default_checkpoint_directory(run) if directory_of is None else Path(directory_of(run))


def get_default_checkpoint_directory(run: Run) -> Path | None:
    """Return the checkpoint directory of a saver without its own; None if the run has no work directory.

    Unlike that of the service `checkpoints_dir`, the directory need not exist and is not created.
    """
    provided = run.services.get_provided("checkpoints_dir")
    if provided is not None:
        return Path(provided)
    return None if run.work_dir is None else run.work_dir.path / DIRECTORIES["checkpoints_dir"]


def get_checkpoint_directories(run: Run) -> list[Path]:
    """Return the directories that an automatic resume searches, in this order.

    Multiple hooks may write checkpoints, each to its own directory. That of the saver is the first. If no hook has its
    own directory, the default one is searched.
    """
    hooks = [hook for hook in run.bus.hooks.values() if is_saver(hook)]
    directories = [Path(hook.directory(run)) for hook in hooks if hasattr(hook, "directory")]
    if not directories or run.get("checkpoint_saver") is not None:
        first = get_checkpoint_directory(run)
        directories = [*([first] if first is not None else []), *directories]
    return list(dict.fromkeys(directories))


def _locate_best_files(run: Run, directory: Path) -> None:
    """Set the paths of the best files, which are stored relative to directories that may have been renamed or copied.

    Args:
        run: Run that has been restored.
        directory: Directory of the checkpoint, which may be that of another run.
    """
    directories = [run.work_dir.path] if run.work_dir is not None else []
    with suppress(CheckpointError):  # a validation or test without a work directory writes no checkpoints
        directories += get_checkpoint_directories(run)
    directories.append(directory)
    run.best.update({metric: best.locate(directories) for metric, best in run.best.items()})


def _check_run_id(run: Run) -> str:
    """Return the ID of the recorded run, after a check that its checkpoints are found."""
    assert run.work_dir is not None
    if contains_training_run(run.work_dir.path):
        check_checkpoints(get_checkpoint_directories(run), run.work_dir.path)
    return run.work_dir.recorded_run


def _describe_recorded_run(work_dir: Path, status: Mapping[str, Any]) -> str:
    """Return the beginning of the error for a recorded run."""
    if not status:
        return f"{work_dir} contains a run whose {STATUS} is missing or invalid"
    counts = f"{status.get('epochs_done')} epochs and {status.get('iters_done')} iterations"
    saved = f"saved {work_dir / status[CHECKPOINT]}" if CHECKPOINT in status else "may have saved checkpoints"
    return f"{work_dir / STATUS} records a run with {counts} that {saved}"


def _may_belong_to(path: Path, status: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint may be one of the recorded run, also if its sidecar is missing or corrupted."""
    sidecar, run = read_sidecar(path), status.get("run")
    return sidecar is None or not run or sidecar.run in ("", run)


def _report_restart(run: Run) -> None:
    """Log that a recorded run restarts because it had not saved any checkpoint."""
    if run.work_dir is not None and run.work_dir.recorded_status:
        run.logger.warning(
            "resume: the run in %s stopped before it saved a checkpoint (%s iterations are recorded). Training "
            "restarts from iteration 0, and the logs of that run are kept under another name.",
            run.work_dir.path,
            run.work_dir.recorded_status.get("iters_done", 0),
        )


def _find_newest(run: Run) -> Path | None:
    """Return the newest valid checkpoint of the run, as found by rank 0, with a warning per corrupted one."""
    directories = get_checkpoint_directories(run)
    if not directories:
        raise CheckpointError('resume: "auto" requires a work directory, got none. Set `work_dir`.')
    # On rank 0 only: on a network file system the ranks may see different files.
    newest = run.ranks.call_on_main("the newest checkpoint", partial(_find_newest_in_directories, directories))
    if newest is None:
        return None
    path, problems = newest
    for problem in problems:
        run.logger.warning("resume: %s", problem)
    return path


def _find_newest_in_directories(directories: Iterable[Path]) -> tuple[Path, list[str]] | None:
    """Return the newest valid checkpoint of the first directory that contains any, and the problems of others in it."""
    from hookbus.checkpoint import state

    for directory in directories:
        # Verifies checksums without allocating tensors.
        newest = state.find_latest_checkpoint(directory, map_location="meta")
        if newest is not None:
            return newest[0], newest[2]
    return None


def _verify(run: Run, checkpoint: str | Path) -> Path:
    """Return the path of the specified checkpoint after rank 0 has verified its checksum."""
    from hookbus.checkpoint.load import resolve_path, verify_checkpoint

    path = resolve_path(checkpoint)
    run.ranks.call_on_main("the checkpoint", partial(verify_checkpoint, path))
    return path
