"""Removes the generations that no checkpoint file names any more."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hookbus.checkpoints.generations import generation_named, generations_in, read_manifest, remove_generation
from hookbus.checkpoints.reading import glance_at
from hookbus.errors import CheckpointError

__all__ = ["sweep"]


def sweep(folder: Path, run: str) -> None:
    """Remove the generations of a run that no file names, such as those whose last name was removed or given to others.

    Args:
        folder: where they are.
        run: the id of the run; the generations of others stay.
    """
    unnamed = {directory for _, directory in generations_in(folder)}
    for path in folder.glob("[!.]*.pth") if unnamed else ():
        with suppress(CheckpointError):  # what cannot be read names nothing
            unnamed.discard(generation_named(path, glance_at(path)))
    for directory in unnamed:
        with suppress(CheckpointError):  # nobody knows whose it is
            if read_manifest(directory)["run"] == run:
                remove_generation(directory, run)
