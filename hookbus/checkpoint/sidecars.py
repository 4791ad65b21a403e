"""Sidecars of checkpoints: identification of files by owner, and verification of their content.

A checkpoint has a sidecar `<file>.json` with name, size, hash (XXH3-128), generation and run ID, and a checksum of
these fields. `hookbus.checkpoint.atomic_files` writes it. The hashes detect corruption; they do not protect against
deliberate changes to both files.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import fields as get_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._utils.files import open_regular_file, parse_json, read_regular_file
from hookbus._utils.schema import any_value, file_name, integer, list_of, record, string
from hookbus.errors import CheckpointCorruptedError, CheckpointError, format_path

if TYPE_CHECKING:
    import xxhash

SIDECAR_SUFFIX = ".json"

ZIP_MAGIC = b"PK\x03\x04"

MAX_SIDECAR_SIZE = 1 << 20
"""Maximum size in bytes of a sidecar. An entry of a replaced file has about 250 bytes."""

SYSTEM_ERRORS = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Errors of a disk, a network or a process, which state nothing about the file; it is not foreign for that reason."""

_entry_fields = {"name": file_name, "size": integer(), "hash": string("[0-9a-f]{32}"), "generation": integer()}
_entry_options = {"run": string("[0-9A-Za-z_-]*", 64)}
# The entries of replaced files have no entries of their own.
_check_entry = record({**_entry_fields, "previous": list_of(any_value, maximum=0)}, _entry_options)
_check_sidecar = record({**_entry_fields, "previous": list_of(_check_entry)}, _entry_options)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Metadata of a committed file.

    Attributes:
        name: File name.
        size: Size in bytes.
        hash: XXH3-128 hash of the contents, in hex.
        generation: Number that increases with every save of a run; the newest file has the largest.
        run: ID of the run that wrote the file; "" if the sidecar does not contain it.
        previous: Files that are being replaced by this one; empty once the replacement is complete.
    """

    name: str
    size: int
    hash: str
    generation: int
    previous: tuple[Sidecar, ...] = ()
    run: str = ""

    def matching_entry(self, size: int, digest: Callable[[], str]) -> Sidecar | None:
        """Return the entry that matches a file, None if the file is corrupted.

        Args:
            size: Size of the file in bytes.
            digest: Computes the hash of the file; called only if an entry has this size.
        """
        # Comparing sizes first avoids reading a truncated file to the end.
        candidates = [entry for entry in (self, *self.previous) if entry.size == size]
        return next((entry for entry in candidates if entry.hash == digest()), None)


def read_sidecar(path: Path) -> Sidecar | None:
    """Return the sidecar of a file, None if it is missing, corrupted, or cannot be read."""
    try:
        return load_sidecar(path)
    except OSError:
        return None


def load_sidecar(path: Path) -> Sidecar | None:
    """Return the sidecar of a file, None if it is missing or corrupted.

    Raises:
        OSError: If the system could not read it; a later attempt may succeed.
    """
    try:
        fields = parse_json(read_regular_file(get_sidecar_path(path), MAX_SIDECAR_SIZE))
        _check_sidecar(fields, "")
    except ValueError:
        return None
    except OSError as error:
        if error.errno in SYSTEM_ERRORS:
            raise
        return None
    return _parse_sidecar(fields) if fields.pop("check", None) == checksum(fields) else None


def written_by(path: Path, run: str) -> bool:
    """Return whether a file was written by the run with this ID, according to its sidecar.

    A link, a directory, or a file of another size than in the sidecar has replaced the file that the run wrote, unless
    that file was truncated.

    Raises:
        OSError: If the owner is unknown because the system could not read the sidecar.
    """
    sidecar = load_sidecar(path)
    if sidecar is None or sidecar.run != run or not path.is_file() or path.is_symlink():
        return False
    sizes, size = [entry.size for entry in (sidecar, *sidecar.previous)], path.stat().st_size
    return size in sizes or (size < max(sizes) and _is_truncated_archive(path))


def is_available(path: Path, run: str) -> bool:
    """Return whether a run can write a file, see `CheckpointStore.is_available`."""
    if os.path.lexists(path):
        return written_by(path, run)
    if not os.path.lexists(get_sidecar_path(path)):
        return True
    sidecar = load_sidecar(path)
    # Without the file, the run was killed between writing the two.
    return sidecar is not None and sidecar.run == run


def verify(path: Path) -> Sidecar:
    """Verify size and hash of a file against its sidecar, see `CheckpointStore.verify`."""
    shown = format_path(path)
    if not os.path.isfile(path):
        raise CheckpointError(f"{shown}: file does not exist, or is not a regular file.")
    sidecar = read_sidecar(path)
    if sidecar is None:
        raise CheckpointError(
            f"{shown}: {format_path(path.name)}{SIDECAR_SUFFIX} is missing or corrupted, so the file cannot be "
            "verified."
        )
    try:
        size = path.stat().st_size
        # Several entries may have the size of the file, which is hashed at most once.
        entry = sidecar.matching_entry(size, functools.cache(lambda: hash_file(path)))
    except OSError as error:
        raise CheckpointError(f"{shown}: file cannot be read: {error.strerror}.") from None
    if entry is None:
        reason = "checksum mismatch" if size == sidecar.size else f"expected {sidecar.size} bytes, got {size}"
        raise CheckpointCorruptedError(f"{shown}: corrupted: {reason}.")
    return entry


def list_newest_first(directory: Path, pattern: str = "*.pth") -> list[Path]:
    """Return the files of a directory that have a sidecar, newest generation first; hidden files are ignored.

    If the replacement of a file was interrupted, its hash determines which of the two generations the file contains.
    """
    visible = [path for path in directory.glob(pattern) if not path.name.startswith(".")]
    entries = [(_current_entry(path, sidecar), path) for path in visible if (sidecar := read_sidecar(path)) is not None]
    # At equal generations, a completed file precedes one whose replacement was interrupted; the name breaks ties.
    entries.sort(key=lambda item: (-item[0].generation, bool(item[0].previous), item[1].name))
    return [path for _, path in entries]


def hash_file(path: Path) -> str:
    """Return the XXH3-128 hash of a file, in hex.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
    """
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, create_hasher).hexdigest()


def checksum(fields: Mapping[str, Any]) -> str:
    """Return a checksum, in hex, of the fields of a sidecar or manifest; it detects corruption of that file itself."""
    return create_hasher(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def get_sidecar_path(path: Path) -> Path:
    """Return the path of the sidecar of a file."""
    return path.with_name(path.name + SIDECAR_SUFFIX)


def create_hasher(data: bytes = b"") -> xxhash.xxh3_128:
    """Return a new XXH3-128 hash object that was updated with data."""
    # Imported on first use to keep `import hookbus` fast.
    import xxhash

    return xxhash.xxh3_128(data)


def _is_truncated_archive(path: Path) -> bool:
    """Return whether a file is empty, or a zip file such as those of torch without its end, which nobody can load."""
    with open(path, "rb") as file:
        return file.read(len(ZIP_MAGIC)) in (b"", ZIP_MAGIC) and not zipfile.is_zipfile(path)


def _parse_sidecar(fields: Mapping[str, Any]) -> Sidecar:
    own = {field.name: fields[field.name] for field in get_fields(Sidecar) if field.name in fields}
    return Sidecar(**{**own, "previous": tuple(map(_parse_sidecar, fields["previous"]))})


def _current_entry(path: Path, sidecar: Sidecar) -> Sidecar:
    """Return the entry that matches the file on disk; for a corrupted file, the entry of the expected file."""
    # Hashing is needed only if an interrupted replacement left several candidates.
    if not sidecar.previous:
        return sidecar
    try:
        return sidecar.matching_entry(path.stat().st_size, lambda: hash_file(path)) or sidecar
    except OSError:  # reported when the file is verified
        return sidecar
