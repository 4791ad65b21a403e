"""Generations: directories that hold one checkpoint each, of which every process has written a part.

    checkpoints/
      epoch_3.pth, last.pth          names: small files, each with its sidecar, that say which generation they mean
      generation_3/
        manifest.json                size and hash of every file here, and a hash of these
        checkpoint.pth               what the processes have in common
        .metadata, __0_0.distcp ...  the tensors that are spread over them

A generation is written under a hidden name, flushed, and renamed before any file names it. So a name is committed,
replaced, linked, verified and removed like every other checkpoint file; its hash covers that of the manifest, and so
each byte of the generation. A generation that no file names is removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookbus.checkpoints.files import check_of, flush, hash_file, temporary_name, write_json
from hookbus.errors import CheckpointDamaged, CheckpointError

__all__ = [
    "COMMON",
    "POINTER",
    "directory_of",
    "generation_named",
    "generations_in",
    "is_generation",
    "publish",
    "read_manifest",
    "remove_generation",
    "seal",
    "verify_generation",
]

COMMON = "checkpoint.pth"
MANIFEST = "manifest.json"
POINTER = "generation"
"""The key under which a small file names its generation: the directory, and the hash of the manifest."""

DIRECTORY = re.compile(r"generation_(\d+)")


def directory_of(generation: int) -> str:
    """The name of the directory of a generation."""
    return f"generation_{generation}"


def generations_in(folder: Path) -> Iterator[tuple[int, Path]]:
    """(number, directory) of each generation in a folder."""
    for path in folder.glob("generation_*"):
        if (found := DIRECTORY.fullmatch(path.name)) and path.is_dir():
            yield int(found[1]), path


def is_generation(path: Path) -> bool:
    """Whether a path is the directory of a generation, damaged or not."""
    return path.is_dir() and (path / MANIFEST).exists()


def generation_named(path: Path, content: Mapping[str, Any]) -> Path | None:
    """The directory that a file names; None where the file is a checkpoint by itself.

    Args:
        path: the file.
        content: what is in it.

    Raises:
        CheckpointError: the directory is not beside the file.
        CheckpointDamaged: the file names something else.
    """
    pointer = content.get(POINTER)
    if not isinstance(pointer, Mapping):
        return None
    name = pointer.get("directory")
    if not isinstance(name, str) or not DIRECTORY.fullmatch(name):
        raise CheckpointDamaged(f"{path}: it names {name!r}, which is no generation of a checkpoint.")
    if not (path.parent / name).is_dir():
        raise CheckpointError(f"{path}: its tensors are in {name}, which is not here. Copy that directory as well.")
    return path.parent / name


def seal(directory: Path, files: Mapping[str, tuple[int, str]], **facts: Any) -> str:
    """Write the manifest of a generation.

    Args:
        directory: where the files are, each flushed.
        files: size and hash by name.
        facts: plain values that stand in the manifest as well, such as `run`.

    Returns:
        The hash of the manifest.
    """
    fields = {**facts, "files": {name: list(each) for name, each in sorted(files.items())}}
    write_json(directory / MANIFEST, {**fields, "check": check_of(fields)})
    return hash_file(directory / MANIFEST)


def publish(temporary: Path, directory: Path) -> None:
    """Give a complete generation its name.

    Raises:
        OSError: it could not be renamed, or there is a generation of this name.
    """
    os.rename(temporary, directory)
    flush(directory.parent)


def read_manifest(directory: Path) -> dict[str, Any]:
    """What the manifest of a generation says.

    Raises:
        CheckpointDamaged: it is missing, or not as it was written.
    """
    try:
        fields: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
        if fields.pop("check") == check_of(fields):
            return fields
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise CheckpointDamaged(f"{directory}: {MANIFEST} is missing or damaged, so the generation cannot be verified.")


def verify_generation(directory: Path, manifest: str | None = None) -> None:
    """Compare every file of a generation with the manifest, byte for byte by its hash.

    Args:
        directory: the generation.
        manifest: the hash of the manifest, where a file vouches for it.

    Raises:
        CheckpointDamaged: a byte is missing, too many or changed; the message names the file.
    """
    files = read_manifest(directory)["files"]
    if manifest is not None and hash_file(directory / MANIFEST) != manifest:
        raise CheckpointDamaged(f"{directory}: it is not the generation that was saved under this name.")
    for name, (size, digest) in files.items():
        path = directory / name
        if not path.is_file():
            raise CheckpointDamaged(f"{path}: damaged: it is missing.")
        if path.stat().st_size != size or hash_file(path) != digest:
            raise CheckpointDamaged(f"{path}: damaged: its bytes are not those that were saved.")


def remove_generation(directory: Path, run: str) -> None:
    """Delete a generation.

    Args:
        directory: Directory of the generation.
        run: ID of the run that wrote it.
    """
    hidden = directory.with_name(temporary_name(run))  # a partly deleted directory must not look like a generation
    os.rename(directory, hidden)
    shutil.rmtree(hidden)
