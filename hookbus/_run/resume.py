"""Resume a run from a checkpoint: search, verification and restore."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus._run.checkpoint_search import FoundCheckpoint, find_checkpoint
from hookbus._run.finalize import write_status
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.errors import CheckpointError, ConfigError, format_path

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.distributed.collectives import Collectives


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


def verify_resume(resume: str | Path, ranks: Collectives) -> str | Path:
    """Verify the checkpoint to resume from, unless it is chosen automatically. Called before a directory is locked.

    Args:
        resume: "auto", "never" or the path of a checkpoint.
        ranks: Collective communication between the processes of the run.

    Returns:
        "auto", "never" or the path of the checkpoint.

    Raises:
        CheckpointError: If the checkpoint does not exist or is corrupted.
    """
    if resume in ("auto", "never"):
        return resume
    return ranks.call_on_main("the checkpoint", partial(_verify, resume))


def resume_run(run: Run, path: Path | None) -> None:
    """Restore a run from a verified checkpoint and log its position.

    Args:
        run: Run that has started.
        path: Path of the checkpoint; None if `find_resumed_checkpoint` has found none.

    Raises:
        CheckpointError: If the checkpoint is not compatible with the run.
    """
    # A hook may have set the directory in `before_run`.
    path = path or find_resumed_checkpoint(run)
    if path is None and run.mode != "train":
        raise CheckpointError(
            f'resume: no checkpoint to evaluate, got "auto" in {_describe_searched(run)}. Train first, or pass the '
            "path of a checkpoint."
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
    return run.checkpoint_directory if directory_of is None else Path(directory_of(run))


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


def _locate_best_files(run: Run, directory: Path) -> None:
    """Set the paths of the best files, which are stored relative to directories that may have been renamed or copied.

    Args:
        run: Run that has been restored.
        directory: Directory of the checkpoint, which may be that of another run.
    """
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


def _describe_searched(run: Run) -> str:
    """Return the directories that an automatic resume has searched, for a message."""
    return ", ".join(map(format_path, get_checkpoint_directories(run)))


def _report_restart(run: Run) -> None:
    """Log that a recorded run restarts because it had not saved any checkpoint."""
    if run.work_dir is not None and run.work_dir.recorded_status:
        run.logger.warning(
            "resume: the run in %s stopped before it saved a checkpoint (%s iterations are recorded). Training "
            "restarts from iteration 0, and the logs of that run are kept under another name.",
            run.work_dir.path,
            run.work_dir.recorded_status.get("iters_done", 0),
        )


def _verify(checkpoint: str | Path) -> Path:
    """Return the path of a checkpoint after its checksum has been verified."""
    from hookbus.checkpoint.load import resolve_path, verify_checkpoint

    path = resolve_path(checkpoint)
    verify_checkpoint(path)
    return path
