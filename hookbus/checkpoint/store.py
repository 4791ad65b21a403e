"""Removal of generations without a reference."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hookbus.checkpoint.generations import (
    get_directory_name,
    iter_generations,
    read_manifest,
    remove_generation,
    resolve_pointer,
)
from hookbus.checkpoint.load import load_file_on_meta
from hookbus.checkpoint.sidecars import read_sidecar
from hookbus.errors import CheckpointCorruptedError, CheckpointError


def remove_unreferenced(folder: Path, run: str) -> None:
    """Remove the generations of a run that no file refers to.

    Args:
        folder: Directory that contains references and generations.
        run: ID of the run; generations of other runs are kept.
    """
    # A link to a directory is foreign, even if a generation was moved and replaced by the link.
    unreferenced = {directory for _, directory in iter_generations(folder) if not directory.is_symlink()}
    for path in folder.glob("[!.]*.pth") if unreferenced else ():
        # A FIFO in the place of a file would block.
        if os.path.isfile(path):
            unreferenced -= _get_references(path)
    for directory in unreferenced:
        # Without a valid manifest the owner is unknown, so the directory is kept.
        with suppress(CheckpointError):
            if read_manifest(directory)["run"] == run:
                remove_generation(directory, run)


def _get_references(path: Path) -> set[Path | None]:
    """Return the generation that a file refers to, or the ones that it may refer to if it cannot be read."""
    try:
        return {resolve_pointer(path, load_file_on_meta(path))}
    except CheckpointCorruptedError:
        # It cannot be resumed from, so it keeps no generation.
        return set()
    except CheckpointError:
        # It may be readable later. The sidecar contains the number of its generation.
        sidecar = read_sidecar(path)
        entries = () if sidecar is None else (sidecar, *sidecar.previous)
        return {path.parent / get_directory_name(entry.generation) for entry in entries}
