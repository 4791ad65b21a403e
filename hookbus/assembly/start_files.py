"""From which files would a run begin, and where would its own checkpoints go?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus.checkpoints import files
from hookbus.checkpoints.reading import check_fit, existing, outline_of, verify_checkpoint
from hookbus.errors import CheckpointError
from hookbus.model.layouts import layout_of
from hookbus.runs.resuming import check_checkpoints, checkpoints_of
from hookbus.runs.workdir import read_status, why_unwritable
from hookbus.state import check_resumable, find_newest, load_weights, read_checkpoint, weights_in

if TYPE_CHECKING:
    from hookbus.loop import Trainer
    from hookbus.run import Run

__all__ = ["check_files", "checkpoints_directory", "file_checks", "load_as_judged", "load_given_weights"]


def check_files(trainer: Trainer) -> None:
    """See that the files a run begins from are checkpoints. Their numbers are not read.

    Raises:
        CheckpointError: one is not there, is no checkpoint, or does not fit the model.
    """
    for key, path in _files_of(trainer):
        _check_outline(trainer, key, path)


def load_given_weights(trainer: Trainer, run: Run) -> None:
    """Start a run from the weights that the trainer was told to load, unless it goes on from where another one was.

    Raises:
        CheckpointError: the file is no checkpoint, or does not fit the model.
    """
    if trainer.load_from is None or run.iters_done or trainer.resume not in ("never", "auto"):
        return
    checkpoint = read_checkpoint(trainer.load_from, layout=layout_of(run.model))
    run.bus.fire("after_load_checkpoint", checkpoint=checkpoint, path=Path(trainer.load_from))
    averaged = trainer.load_weights == "averaged"
    load_weights(run, checkpoint, averaged=averaged, strict=trainer.load_strict)


def load_as_judged(trainer: Trainer, path: Path) -> None:
    """Have a trainer start from a checkpoint as validations have judged it: with averaged weights where there are any.

    Raises:
        CheckpointError: there is no such file, or it is no checkpoint.
    """
    with _about("load_from"):
        has_averages = "ema_state_dict" in outline_of(path)
    trainer.load_from, trainer.load_weights, trainer.load_strict = path, "averaged" if has_averages else "raw", True


def file_checks(trainer: Trainer) -> list[Callable[[], str]]:
    """What `hookbus check` looks at: each returns a line that says what a training would do, or raises."""
    return [
        *(partial(_check_file, trainer, *each) for each in _files_of(trainer)),
        partial(_check_automatic_resume, trainer),
        partial(_check_checkpoints_directory, trainer),
    ]


def checkpoints_directory(trainer: Trainer) -> Path | None:
    """Where the checkpoints of a trainer that is in no run are; None where it writes none.

    Args:
        trainer: the trainer. A hook that writes checkpoints may have a directory of its own for them.
    """
    idle = trainer.bus.current
    if trainer.work_dir is not None:
        idle.provide("checkpoints_dir", Path(trainer.work_dir) / "checkpoints")
    for hook in trainer.bus.hooks.values():
        if hasattr(hook, "plan") and hasattr(hook, "write"):
            idle.provide("saver", hook)
    return checkpoints_of(idle)


def _files_of(trainer: Trainer) -> list[tuple[str, str | Path]]:
    """The files that a run begins from, by what names them; none where a run that is there already goes on."""
    if trainer.resume not in ("auto", "never"):
        return [("resume", trainer.resume)]
    goes_on = trainer.resume == "auto" and trainer.work_dir is not None and read_status(Path(trainer.work_dir))
    return [] if trainer.load_from is None or goes_on else [("load_from", trainer.load_from)]


def _check_file(trainer: Trainer, key: str, path: str | Path) -> str:
    """See that a checkpoint that is asked for is there and whole, and fits."""
    if Path(path).is_dir() or files.read_sidecar(Path(path)) is not None:
        verify_checkpoint(existing(path))
    _check_outline(trainer, key, path)
    return f"{key}: {path}"


def _check_automatic_resume(trainer: Trainer) -> str:
    """See that the run that is there can go on."""
    directory = checkpoints_directory(trainer) if trainer.resume == "auto" else None
    found = None if directory is None else find_newest(directory)
    if found is None:
        if directory is not None and trainer.work_dir is not None:
            check_checkpoints([directory], read_status(Path(trainer.work_dir)), Path(trainer.work_dir))
        return ""
    path, _, troubles = found
    _check_outline(trainer, "resume", path)
    return "\n".join([*(f"resume: {trouble}" for trouble in troubles), f"resume: {path}"])


def _check_checkpoints_directory(trainer: Trainer) -> str:
    """See that there can be checkpoints where the hook that writes them wants them."""
    directory = checkpoints_directory(trainer)
    inside = trainer.work_dir is not None and directory is not None and directory.is_relative_to(trainer.work_dir)
    if directory is None or inside:
        return ""
    if reason := why_unwritable(directory):
        raise CheckpointError(f"The directory {directory} for checkpoints cannot be written: {reason}. Give another.")
    return f"checkpoints: {directory}"


def _check_outline(trainer: Trainer, key: str, path: str | Path) -> None:
    """See that a file is a checkpoint; that it fits as well, unless a hook may change it after reading."""
    with _about(key):
        outline = outline_of(path)
    with _about(f"{key}: {path}"):
        if key == "resume":
            check_resumable(outline)
        weights = weights_in(outline, averaged=key == "load_from" and trainer.load_weights == "averaged")
        if not trainer.bus.table.listeners("after_load_checkpoint", trainer.bus.current):
            check_fit(trainer.model, weights, strict=key == "resume" or trainer.load_strict)


@contextmanager
def _about(what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{what}: {error}") from error
