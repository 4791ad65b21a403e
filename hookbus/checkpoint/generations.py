"""Generations: directories that contain one sharded checkpoint each, to which every rank has written its shards.

    checkpoints/
      epoch_3.pth, last.pth          references: small files, each with a sidecar, that contain the generation's name
      generation_3/
        manifest.json                size and hash of every file in the directory, and a checksum of these
        checkpoint.pth               the state that is the same on all ranks
        metadata.json                names and shapes of the sharded tensors, and the location of their shards
        __0_0.distcp ...             the sharded tensors

A generation is written under a hidden name, fsynced, and renamed before a file refers to it. References are therefore
committed, replaced, linked, verified and removed like all other checkpoint files. The hash of a reference covers the
hash of the manifest, and thereby every byte of the generation. Generations without a reference are removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookbus._utils import schema
from hookbus._utils.files import parse_json, read_regular_file
from hookbus.checkpoint.atomic_files import make_temporary_name, write_json
from hookbus.checkpoint.file_system import fsync
from hookbus.checkpoint.sidecars import checksum, hash_file
from hookbus.errors import CheckpointCorruptedError, CheckpointError, format_path

COMMON_FILE = "checkpoint.pth"
MANIFEST_FILE = "manifest.json"
POINTER_KEY = "generation"
"""Key of a reference file: directory name of the generation and hash of its manifest."""

DIRECTORY_PATTERN = re.compile(r"generation_([0-9]{1,15})")

MAX_MANIFEST_SIZE = 64 << 20
"""Maximum size in bytes of a manifest, which has about 100 bytes per rank."""

_hash = schema.string("[0-9a-f]{32}")


def _check_file(value: Any, key: str) -> None:
    """Require the size and the hash of a file."""
    schema.list_of(schema.any_value, 2, 2)(value, key)
    schema.integer()(value[0], f"{key}[0]")
    _hash(value[1], f"{key}[1]")


_check_manifest = schema.record(
    {
        "generation": schema.integer(),
        "run": schema.string("[0-9A-Za-z_-]*", 64),
        "files": schema.mapping_of(_check_file, schema.file_name),
    }
)
_check_pointer = schema.record({"directory": schema.string(DIRECTORY_PATTERN.pattern), "manifest": _hash})


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
    return path.is_dir() and os.path.lexists(path / MANIFEST_FILE)


def resolve_pointer(path: Path, content: Mapping[str, Any]) -> Path | None:
    """Return the generation that a file refers to, None if the file is itself a checkpoint.

    Raises:
        CheckpointError: If the directory of the generation does not exist.
        CheckpointCorruptedError: If the reference is not the name of a generation.
    """
    pointer = content.get(POINTER_KEY)
    if not isinstance(pointer, Mapping):
        return None
    try:
        # The pattern also rejects path separators, so that a reference cannot lead out of its directory.
        _check_pointer(pointer, POINTER_KEY)
    except schema.InvalidDataError as error:
        raise CheckpointCorruptedError(f"{format_path(path)}: invalid reference to a generation: {error}.") from None
    name: str = pointer["directory"]
    if not (path.parent / name).is_dir():
        raise CheckpointError(
            f"{format_path(path)}: its tensors are in {name}, which does not exist. Copy that directory as well."
        )
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
        fields: dict[str, Any] = parse_json(read_regular_file(directory / MANIFEST_FILE, MAX_MANIFEST_SIZE))
        _check_manifest(fields, "")
        reason = "" if fields.pop("check", None) == checksum(fields) else "checksum mismatch"
    except (OSError, ValueError) as error:
        reason = str(error.strerror if isinstance(error, OSError) else error)
    if reason:
        raise CheckpointCorruptedError(
            f"{format_path(directory)}: {MANIFEST_FILE} is missing or corrupted, so the generation cannot be verified: "
            f"{reason}."
        )
    return fields


def verify_generation(directory: Path, manifest: str | None = None) -> None:
    """Verify size and hash of every file of a generation against its manifest.

    Args:
        directory: Directory of the generation.
        manifest: Expected hash of the manifest, from a reference file; None to accept any valid manifest.

    Raises:
        CheckpointCorruptedError: If a file is missing or does not match; the message contains its path.
    """
    files = read_manifest(directory)["files"]
    if manifest is not None and _hash_or_raise(directory / MANIFEST_FILE) != manifest:
        raise CheckpointCorruptedError(f"{format_path(directory)}: not the generation that was saved under this name.")
    for name, (size, digest) in files.items():
        path = directory / name
        if not os.path.isfile(path):
            raise CheckpointCorruptedError(f"{format_path(path)}: corrupted: file is missing.")
        if path.stat().st_size != size or _hash_or_raise(path) != digest:
            raise CheckpointCorruptedError(f"{format_path(path)}: corrupted: checksum mismatch.")


def _hash_or_raise(path: Path) -> str:
    """Return the hash of a file of a generation; raise a CheckpointCorruptedError if it cannot be read."""
    try:
        return hash_file(path)
    except OSError as error:
        raise CheckpointCorruptedError(
            f"{format_path(path)}: corrupted: file cannot be read: {error.strerror}."
        ) from None


def remove_generation(directory: Path, run: str) -> None:
    """Delete the files of a generation, and its directory unless it contains other files.

    Raises:
        CheckpointCorruptedError: If the manifest, which lists the files, is missing or corrupted.
    """
    # The manifest is the last one: after a kill, it identifies the rest of the generation.
    own = [directory / name for name in (*read_manifest(directory)["files"], MANIFEST_FILE)]
    if set(directory.iterdir()) <= set(own):
        # A partially deleted directory must not look like a generation.
        hidden = directory.with_name(make_temporary_name(run))
        os.rename(directory, hidden)
        shutil.rmtree(hidden)
        return
    for path in own:
        if path.is_file() and not path.is_symlink():
            path.unlink()
