"""A run goes on from a checkpoint: which one, and what is said of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus.errors import CheckpointError
from hookbus.runs.ending import write_status
from hookbus.runs.services import DIRECTORIES

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["checkpoints_of", "go_on_from"]


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
