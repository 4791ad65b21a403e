"""A run goes on from a checkpoint: which one, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.checkpoints.files import read_sidecar
from hookbus.errors import CheckpointError, ConfigError
from hookbus.runs.ending import write_status
from hookbus.runs.services import DIRECTORIES
from hookbus.runs.workdir import CHECKPOINT, STATUS

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["check_checkpoints", "checkpoints_of", "go_on_from", "take_up_recorded_run"]


def take_up_recorded_run(run: Run) -> None:
    """Prepare an automatic resume, before the run begins and before any file is modified.

    The run takes the ID of the run that the work directory records: files of that run remain its own, also if it
    restarts from iteration 0. Called on every rank.

    Raises:
        ConfigError: If the recorded run has committed checkpoints, and none of them is found.
    """
    if run.work_dir is not None:
        run.id = run.ranks.by_main("the recorded run", partial(_checked_run_id, run)) or run.id


def check_checkpoints(directories: Iterable[Path], status: Mapping[str, Any], work_dir: Path) -> None:
    """Check that checkpoints of a recorded run are found if the run has committed any.

    Args:
        directories: Directories that are searched.
        status: Content of `status.json`.
        work_dir: Work directory that contains `status.json`.

    Raises:
        ConfigError: If none is found.
    """
    searched = list(dict.fromkeys(directories))
    if status.get(CHECKPOINT) is None or any(
        _is_of(path, status) for each in searched for path in each.glob("[!.]*.pth")
    ):
        return
    raise ConfigError(
        [
            f"resume: {work_dir / STATUS} records a run with {status.get('epochs_done')} epochs and "
            f"{status.get('iters_done')} iterations that saved {status[CHECKPOINT]}, but no checkpoint of that run was "
            f"found in {', '.join(map(str, searched))}. Restore that directory or correct `out_dir`, or pass "
            "`--overwrite` (`overwrite=True`) to remove the recorded run. Nothing was modified."
        ]
    )


def go_on_from(run: Run, resume: str | Path) -> None:
    """Put a run where a checkpoint was taken, and say so.

    Args:
        run: the run, which has begun.
        resume: the checkpoint; or "auto" for the newest one of its own, where it has any.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it does not fit the run.
    """
    from hookbus import state
    from hookbus.model.layouts import layout_of

    path = _newest_of(run) if resume == "auto" else _verified(run, resume)
    if path is None:
        _report_restart(run)
        return
    checkpoint = state.read_checkpoint(path, layout=layout_of(run.model), verified=True)
    run.bus.fire("after_load_checkpoint", checkpoint=checkpoint, path=path)
    state.restore(run, checkpoint)
    write_status(run)
    run.logger.info(
        "Resumed from %s: epoch %s, iteration %s, step %s.", path, run.epochs_done, run.iters_done, run.steps_done
    )


def checkpoints_of(run: Run) -> Path | None:
    """Where the checkpoints of a run are: the saver knows, if there is one that says so. None where nobody does.

    The directory need not be there, and is not made.
    """
    directory_of = getattr(run.get("saver"), "directory", None)
    if directory_of is not None:
        return Path(directory_of(run))
    provided = run.services.provided("checkpoints_dir")
    if provided is not None:
        return Path(provided)
    return None if run.work_dir is None else run.work_dir.path / DIRECTORIES["checkpoints_dir"]


def _checked_run_id(run: Run) -> str:
    assert run.work_dir is not None
    if run.work_dir.recorded.get(CHECKPOINT) is not None:
        check_checkpoints(_searched_directories(run), run.work_dir.recorded, run.work_dir.path)
    return run.work_dir.recorded_run


def _searched_directories(run: Run) -> list[Path]:
    """Return the checkpoint directory of each hook that writes checkpoints, or of the run if there is none."""
    hooks = [hook for hook in run.bus.hooks.values() if hasattr(hook, "plan") and hasattr(hook, "write")]
    found = [Path(hook.directory(run)) for hook in hooks if hasattr(hook, "directory")]
    default = checkpoints_of(run)
    return found or ([default] if default is not None else [])


def _is_of(path: Path, status: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint may be one of the recorded run; a damaged or missing sidecar does not tell."""
    sidecar = read_sidecar(path)
    return sidecar is None or sidecar.run in ("", status.get("run"))


def _report_restart(run: Run) -> None:
    """Log that a recorded run restarts because it had not saved any checkpoint."""
    if run.work_dir is not None and run.work_dir.recorded:
        run.logger.warning(
            "resume: the run in %s stopped before it saved a checkpoint (%s iterations are recorded). Training "
            "restarts from iteration 0, and the log of that run is replaced.",
            run.work_dir.path,
            run.work_dir.recorded.get("iters_done", 0),
        )


def _newest_of(run: Run) -> Path | None:
    """The newest checkpoint of the run that is whole, as the main rank finds it; the damaged ones are told."""
    directory = checkpoints_of(run)
    if directory is None:
        raise CheckpointError("resume: auto looks for checkpoints in the work directory: give work_dir.")
    found = run.ranks.by_main("the newest checkpoint", partial(_newest_in, directory))
    if found is None:
        return None
    path, troubles = found
    for trouble in troubles:
        run.logger.warning("resume: %s", trouble)
    return path


def _newest_in(directory: Path) -> tuple[Path, list[str]] | None:
    """The path of the newest checkpoint that is whole, and what is wrong with others."""
    from hookbus import state

    found = state.find_newest(directory, map_location="meta")
    return None if found is None else (found[0], found[2])


def _verified(run: Run, given: str | Path) -> Path:
    """The checkpoint that was named, which the main rank has compared with what vouches for it."""
    from hookbus.checkpoints.reading import existing, verify_checkpoint

    path = existing(given)
    run.ranks.by_main("the checkpoint", partial(verify_checkpoint, path))
    return path
