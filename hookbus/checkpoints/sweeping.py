"""Removal of generations without a reference."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hookbus.checkpoints.generations import generation_named, generations_in, read_manifest, remove_generation
from hookbus.checkpoints.reading import glance_at
from hookbus.errors import CheckpointError

__all__ = ["sweep"]


def sweep(folder: Path, run: str) -> None:
    """Remove the generations of a run that no file refers to.

    Args:
        folder: Directory that contains references and generations.
        run: ID of the run; generations of other runs are kept.
    """
    unreferenced = {directory for _, directory in generations_in(folder)}
    for path in folder.glob("[!.]*.pth") if unreferenced else ():
        # A file that cannot be loaded cannot be resumed from either, so it keeps no generation.
        with suppress(CheckpointError):
            unreferenced.discard(generation_named(path, glance_at(path)))
    for directory in unreferenced:
        # Without a valid manifest the owner is unknown, so the directory is kept.
        with suppress(CheckpointError):
            if read_manifest(directory)["run"] == run:
                remove_generation(directory, run)
