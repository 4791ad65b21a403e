"""Validation and loading of the files that a run starts from, and location of its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._config.factories import find_initial_file
from hookbus._run.directory_lock import get_write_error
from hookbus._run.resume import find_checkpoint, get_checkpoint_directories, get_checkpoint_directory
from hookbus.checkpoint import sidecars
from hookbus.checkpoint.contents import check_hook_records
from hookbus.checkpoint.hook_states import check_hook_states, load_hook_states, restore_structure
from hookbus.checkpoint.load import load_on_meta, resolve_path, verify_checkpoint
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.checkpoint.state import TRAINING_WEIGHTS, check_resumable, extract_weights, load_weights, read_checkpoint
from hookbus.checkpoint.weights import check_compatible, get_structure
from hookbus.distributed.sharding import sharding_of
from hookbus.errors import CheckpointError, HookbusError

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.trainer.setup import TrainerSetup


def check_files(trainer: TrainerSetup) -> None:
    """Raise if the files that a run starts from are not valid checkpoints. Tensor data are not loaded.

    Raises:
        CheckpointError: If a file does not exist, is not a checkpoint, or does not match the model.
    """
    for key, path in _initial_files(trainer):
        _check_metadata(trainer, key, path)


def load_initial_weights(trainer: TrainerSetup, run: Run) -> None:
    """Load the initial weights of a run, for a test also the hook states, unless the run continues from another one.

    Raises:
        CheckpointError: If the file is not a checkpoint, or does not match the model.
    """
    if trainer.load_from is None or run.iters_done or trainer.resume not in ("never", "auto"):
        return
    checkpoint = read_checkpoint(trainer.load_from, sharding=sharding_of(run.model))
    run.bus.fire("after_load_checkpoint", checkpoint=checkpoint, path=Path(trainer.load_from))
    states = checkpoint.get("hooks", {})
    check_hook_records(states)
    restore_structure(run, states)
    averaged = trainer.load_weights == "averaged"
    if trainer.loads_hooks:
        check_hook_states(run, states)
    load_weights(run, checkpoint, averaged=averaged, strict=trainer.load_strict)
    if trainer.loads_hooks and states:
        load_hook_states(run, states)
        trainer.loaded_hooks = [name for name in run.bus.hooks if states.get(name, {}).get("state")]


def load_for_test(trainer: TrainerSetup, path: Path) -> None:
    """Configure a trainer to load a checkpoint for a test: the weights that validations evaluated, and hook states.

    Raises:
        CheckpointError: If the file does not exist, or is not a checkpoint.
    """
    with _prefix_errors("load_from"):
        metadata = load_on_meta(path)
    # `state_dict` contains the evaluated weights if the file has others of training.
    is_averaged = "ema_state_dict" in metadata and TRAINING_WEIGHTS not in metadata
    trainer.load_from, trainer.load_weights, trainer.load_strict = path, "averaged" if is_averaged else "raw", True
    trainer.loads_hooks = True


def file_checks(trainer: TrainerSetup) -> list[Callable[[], str]]:
    """Return the file checks of `hookbus check`. Each check returns a line that describes the training, or raises."""
    return [
        *(partial(_check_file, trainer, *file) for file in _initial_files(trainer)),
        partial(_check_checkpoint_files, trainer),
    ]


def load_resume_metadata(trainer: TrainerSetup) -> dict[str, Any] | None:
    """Return the checkpoint that a training would resume from, with tensors on the meta device; None without one.

    Files that cannot be used are reported by `file_checks`.
    """
    try:
        resume = trainer.runs.pending_resume
        path = _find_newest(trainer)[0] if resume == "auto" else resume
        metadata = None if path in (None, "never") else load_on_meta(path)
        if metadata is not None:
            check_resumable(metadata)
        return metadata
    except HookbusError:
        return None


def find_checkpoint_directory(trainer: TrainerSetup, work_dir: Path | None = None) -> Path | None:
    """Return the directory of the checkpoints of an idle trainer, or None if it writes none.

    Args:
        trainer: Trainer. A checkpoint hook may define its own directory.
        work_dir: Work directory of the run. Default: the one that was passed to the trainer.
    """
    # The idle run stands in for the next run, so the same lookup as in training applies.
    idle = trainer.bus.current
    if trainer.work_dir is not None:
        root = work_dir or Path(trainer.work_dir)
        idle.provide("experiment_dir", root)
        idle.provide("checkpoints_dir", root / "checkpoints")
    for hook in trainer.bus.hooks.values():
        if isinstance(hook, CheckpointSaver):
            idle.provide("checkpoint_saver", hook)
    return get_checkpoint_directory(idle)


def _initial_files(trainer: TrainerSetup) -> list[tuple[str, str | Path]]:
    """Return the files that a run starts from, with the argument that names them. Empty if a run is continued."""
    load_from = None if trainer.runs.continues else trainer.load_from
    file = find_initial_file(trainer.runs.pending_resume, load_from, trainer.work_dir)
    return [] if file is None else [file]


def _check_file(trainer: TrainerSetup, key: str, path: str | Path) -> str:
    """Verify the checksum of a requested checkpoint and its compatibility with the model."""
    if Path(path).is_dir() or sidecars.read_sidecar(Path(path)) is not None:
        verify_checkpoint(resolve_path(path))
    _check_metadata(trainer, key, path)
    return f"{key}: {path}"


def _check_checkpoint_files(trainer: TrainerSetup) -> str:
    """Check the search of an automatic resume, then the directory of new checkpoints."""
    if trainer.runs.preview_work_dir()[1]:
        return ""  # a work directory that cannot be used is reported once
    # In sequence: a directory that cannot be searched is reported once.
    return "\n".join([*_check_automatic_resume(trainer), *_check_checkpoints_directory(trainer)])


def _check_automatic_resume(trainer: TrainerSetup) -> list[str]:
    """Verify the checkpoint that automatic resume would load."""
    path, skipped = _find_newest(trainer) if trainer.runs.pending_resume == "auto" else (None, [])
    if path is None:
        return []
    _check_metadata(trainer, "resume", path)
    return [*(f"resume: {message}" for message in skipped), f"resume: {path}"]


def _find_newest(trainer: TrainerSetup) -> tuple[Path | None, list[str]]:
    """Return the checkpoint that an automatic resume would load, None without one, and the problems of other files."""
    find_checkpoint_directory(trainer)  # registers the saver in the idle run
    directories = get_checkpoint_directories(trainer.bus.current)
    newest = find_checkpoint(directories, None if trainer.work_dir is None else Path(trainer.work_dir))
    return (None, []) if newest is None else (newest.path, newest.problems)


def _check_checkpoints_directory(trainer: TrainerSetup) -> list[str]:
    """Raise if the directory of the checkpoint hook is not writable, or a file has its name."""
    work_dir = trainer.runs.preview_work_dir()[0]
    directory = find_checkpoint_directory(trainer, work_dir)
    inside = work_dir is not None and directory is not None and directory.is_relative_to(work_dir)
    # A missing directory inside the work directory is created in it.
    if directory is None or (inside and not os.path.lexists(directory)):
        return []
    if reason := get_write_error(directory):
        raise CheckpointError(
            f"The checkpoint directory {directory} cannot be written: {reason}. Set another directory."
        )
    return [] if inside else [f"checkpoints: {directory}"]


def _check_metadata(trainer: TrainerSetup, key: str, path: str | Path) -> None:
    """Raise if a file is not a checkpoint or does not match the model."""
    with _prefix_errors(key):
        metadata = load_on_meta(path)
    with _prefix_errors(f"{key}: {path}"):
        if key == "resume":
            check_resumable(metadata)
        weights = extract_weights(metadata, averaged=key == "load_from" and trainer.load_weights == "averaged")
        # A listener of this point may change the state dict after loading, so its keys are not known yet.
        if trainer.bus.table.listeners("after_load_checkpoint", trainer.bus.current):
            return
        # Hooks change the model only after the run has started, in `before_run` or `restore_structure`.
        meta = metadata.get("meta")
        initial = meta.get("initial_structure") if isinstance(meta, Mapping) else None
        if initial is None or initial != get_structure(trainer.model):
            check_compatible(trainer.model, weights, strict=key == "resume" or trainer.load_strict)


@contextmanager
def _prefix_errors(prefix: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{prefix}: {error}") from error
