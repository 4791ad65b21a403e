"""Removal of generations without a reference."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hookbus.checkpoint.generations import iter_generations, read_manifest, remove_generation, resolve_pointer
from hookbus.checkpoint.load import load_file_on_meta
from hookbus.errors import CheckpointError

__all__ = ["remove_unreferenced"]


def remove_unreferenced(folder: Path, run: str) -> None:
    """Remove the generations of a run that no file refers to.

    Args:
        folder: Directory that contains references and generations.
        run: ID of the run; generations of other runs are kept.
    """
    unreferenced = {directory for _, directory in iter_generations(folder)}
    for path in folder.glob("[!.]*.pth") if unreferenced else ():
        # A file that cannot be loaded cannot be resumed from either, so it keeps no generation.
        with suppress(CheckpointError):
            unreferenced.discard(resolve_pointer(path, load_file_on_meta(path)))
    for directory in unreferenced:
        # Without a valid manifest the owner is unknown, so the directory is kept.
        with suppress(CheckpointError):
            if read_manifest(directory)["run"] == run:
                remove_generation(directory, run)
