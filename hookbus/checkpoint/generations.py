"""Generations: directories that contain one sharded checkpoint each, to which every rank has written its shards.

    checkpoints/
      epoch_3.pth, last.pth          references: small files, each with a sidecar, that contain the generation's name
      generation_3/
        manifest.json                size and hash of every file in the directory, and a checksum of these
        checkpoint.pth               the state that is the same on all ranks
        .metadata, __0_0.distcp ...  the sharded tensors

A generation is written under a hidden name, fsynced, and renamed before a file refers to it. References are therefore
committed, replaced, linked, verified and removed like all other checkpoint files. The hash of a reference covers the
hash of the manifest, and thereby every byte of the generation. Generations without a reference are removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookbus.checkpoint.atomic_files import checksum, hash_file, make_temporary_name, write_json
from hookbus.checkpoint.file_system import fsync
from hookbus.errors import CheckpointCorruptedError, CheckpointError

__all__ = [
    "COMMON_FILE",
    "POINTER_KEY",
    "commit_generation",
    "get_directory_name",
    "is_generation",
    "iter_generations",
    "read_manifest",
    "remove_generation",
    "resolve_pointer",
    "verify_generation",
    "write_manifest",
]

COMMON_FILE = "checkpoint.pth"
MANIFEST_FILE = "manifest.json"
POINTER_KEY = "generation"
"""Key of a reference file: directory name of the generation and hash of its manifest."""

DIRECTORY_PATTERN = re.compile(r"generation_(\d+)")


def get_directory_name(generation: int) -> str:
    """Return the directory name of a generation."""
    return f"generation_{generation}"


def iter_generations(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield (number, directory) of each generation in a directory."""
    for path in folder.glob("generation_*"):
        if (match := DIRECTORY_PATTERN.fullmatch(path.name)) and path.is_dir():
            yield int(match[1]), path


def is_generation(path: Path) -> bool:
    """Return whether a path is the directory of a generation, whether corrupted or not."""
    return path.is_dir() and (path / MANIFEST_FILE).exists()


def resolve_pointer(path: Path, content: Mapping[str, Any]) -> Path | None:
    """Return the generation that a file refers to, None if the file is itself a checkpoint.

    Args:
        path: Path of the file.
        content: Content of the file.

    Raises:
        CheckpointError: If the directory of the generation does not exist.
        CheckpointCorruptedError: If the reference is not the name of a generation.
    """
    pointer = content.get(POINTER_KEY)
    if not isinstance(pointer, Mapping):
        return None
    name = pointer.get("directory")
    # The pattern also rejects path separators, so that a reference cannot lead out of its directory.
    if not isinstance(name, str) or not DIRECTORY_PATTERN.fullmatch(name):
        raise CheckpointCorruptedError(f"{path}: invalid reference to a generation, got {name!r}.")
    if not (path.parent / name).is_dir():
        raise CheckpointError(f"{path}: its tensors are in {name}, which does not exist. Copy that directory as well.")
    return path.parent / name


def write_manifest(directory: Path, files: Mapping[str, tuple[int, str]], **metadata: Any) -> str:
    """Write the manifest of a generation.

    Args:
        directory: Directory that contains the files, each already fsynced.
        files: Size and hash by file name.
        metadata: Further fields of the manifest, such as `run`; JSON values.

    Returns:
        Hash of the manifest.
    """
    fields = {**metadata, "files": {name: list(size_and_hash) for name, size_and_hash in sorted(files.items())}}
    write_json(directory / MANIFEST_FILE, {**fields, "check": checksum(fields)})
    return hash_file(directory / MANIFEST_FILE)


def commit_generation(temporary: Path, directory: Path) -> None:
    """Rename a complete generation to its final name.

    Raises:
        OSError: If the rename fails, or a generation with this name exists.
    """
    os.rename(temporary, directory)
    # The new name must be durable before a reference to it is written.
    fsync(directory.parent)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Load the manifest of a generation.

    Raises:
        CheckpointCorruptedError: If the manifest is missing or corrupted.
    """
    try:
        fields: dict[str, Any] = json.loads((directory / MANIFEST_FILE).read_text())
        if fields.pop("check") == checksum(fields):
            return fields
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise CheckpointCorruptedError(
        f"{directory}: {MANIFEST_FILE} is missing or corrupted, so the generation cannot be verified."
    )


def verify_generation(directory: Path, manifest: str | None = None) -> None:
    """Verify size and hash of every file of a generation against its manifest.

    Args:
        directory: Directory of the generation.
        manifest: Expected hash of the manifest, from a reference file; None to accept any valid manifest.

    Raises:
        CheckpointCorruptedError: If a file is missing or does not match; the message contains its path.
    """
    files = read_manifest(directory)["files"]
    if manifest is not None and hash_file(directory / MANIFEST_FILE) != manifest:
        raise CheckpointCorruptedError(f"{directory}: not the generation that was saved under this name.")
    for name, (size, digest) in files.items():
        path = directory / name
        if not path.is_file():
            raise CheckpointCorruptedError(f"{path}: corrupted: file is missing.")
        if path.stat().st_size != size or hash_file(path) != digest:
            raise CheckpointCorruptedError(f"{path}: corrupted: checksum mismatch.")


def remove_generation(directory: Path, run: str) -> None:
    """Delete a generation.

    Args:
        directory: Directory of the generation.
        run: ID of the run that wrote it.
    """
    # A partially deleted directory must not look like a generation.
    hidden = directory.with_name(make_temporary_name(run))
    os.rename(directory, hidden)
    shutil.rmtree(hidden)
