"""Removal of generations without a reference."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus.checkpoint.atomic_files import _current_entry, _read_visible_sidecar
from hookbus.checkpoint.generations import iter_generations, read_manifest, remove_generation, resolve_pointer
from hookbus.checkpoint.load import load_file_on_meta
from hookbus.errors import CheckpointError

if TYPE_CHECKING:
    pass

__all__ = ["remove_unreferenced", "list_newest_first"]


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


def list_newest_first(directory: Path, pattern: str = "*.pth") -> list[Path]:
    """Return the files of a directory that have a sidecar, newest generation first; hidden files are ignored.

    If the replacement of a file was interrupted, its hash determines which of the two generations the file contains.
    """
    entries = [
        (_current_entry(path, sidecar), path)
        for path in directory.glob(pattern)
        if (sidecar := _read_visible_sidecar(path))
    ]
    # At equal generations, a completed file precedes one whose replacement was interrupted; the name breaks ties.
    entries.sort(key=lambda item: (-item[0].generation, bool(item[0].previous), item[1].name))
    return [path for _, path in entries]
