"""Atomic file writes with checksums.

Each file is written under a hidden temporary name in its own directory, fsynced and renamed; then the directory is
fsynced. A checkpoint has a sidecar `<file>.json` with name, size, hash (XXH3-128) and generation, and a checksum of
these fields. The sidecar is replaced before the file and lists both the new and the replaced file. The file under the
final name therefore matches an entry of its sidecar whenever the process is killed. The hashes detect corruption; they
do not protect against deliberate changes to both files.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as get_fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hookbus._utils.files import open_regular_file, parse_json, read_regular_file
from hookbus._utils.paths import format_path
from hookbus._utils.schema import any_value, file_name, integer, list_of, record, string
from hookbus.checkpoint.file_system import add_path, fsync, fsync_file, link_or_copy
from hookbus.errors import CheckpointCorruptedError, CheckpointError

if TYPE_CHECKING:
    import xxhash

__all__ = [
    "Sidecar",
    "add_link",
    "atomic_write",
    "checksum",
    "format_json",
    "get_sidecar_path",
    "hash_file",
    "is_available",
    "list_newest_first",
    "make_temporary_name",
    "read_sidecar",
    "remove",
    "remove_orphaned_sidecars",
    "remove_temporary_files",
    "verify",
    "write_json",
    "written_by",
]


SIDECAR_SUFFIX = ".json"
TEMPORARY_PREFIX = ".tmp-"
UUID_PATTERN = re.compile(r"[0-9a-f]{32}")

ZIP_MAGIC = b"PK\x03\x04"

MAX_SIDECAR_SIZE = 1 << 20
"""Maximum size in bytes of a sidecar. An entry of a replaced file has about 250 bytes."""

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


def atomic_write(
    path: Path, write: Callable[[IO[bytes]], object], generation: int | None = None, run: str = ""
) -> Sidecar:
    """Write a file atomically; an existing file is replaced only once the new one is complete.

    Args:
        path: Final path.
        write: Called with a binary file to write to.
        generation: Generation of the sidecar; None for a file without a sidecar.
        run: ID of the run, for the sidecar and the temporary file; "" if the file belongs to no run.

    Returns:
        Size and hash of the written file.

    Raises:
        OSError: If the file could not be written, or if a file without a sidecar of the run has the name of the file or
            of its sidecar; the file under `path` is unchanged.
    """
    with _temporary_path(path, run) as temporary, add_path(path):
        with open(temporary, "wb") as file:
            hashing = _HashingFile(file)
            write(hashing)  # type: ignore[arg-type]
            file.flush()
            # The data must be durable before the rename: after a power failure, the name could exist without it.
            fsync_file(file.fileno(), temporary)
        sidecar = Sidecar(path.name, hashing.size, hashing.digest.hexdigest(), generation or 0, run=run)
        _publish(temporary, path, sidecar if generation is not None else None)
    return sidecar


def add_link(source: Path, target: Path) -> None:
    """Add a second name to a committed file: a hard link, or a copy if the file system does not support hard links.

    Raises:
        CheckpointError: If the source has no valid sidecar.
        OSError: If the link could not be written, or if a file of another owner has its name; see `atomic_write`.
    """
    sidecar = read_sidecar(source)
    if sidecar is None:
        raise CheckpointError(
            f"{format_path(source)}: {format_path(source.name)}{SIDECAR_SUFFIX} is missing or corrupted, so the link "
            f"{format_path(target.name)} cannot be created."
        )
    with _temporary_path(target, sidecar.run) as temporary, add_path(target):
        # `os.link` fails if the target exists, so the link gets a temporary name and is renamed.
        link_or_copy(source, temporary)
        _publish(temporary, target, replace(sidecar, name=target.name))


def _publish(temporary: Path, path: Path, sidecar: Sidecar | None) -> None:
    """Rename a complete temporary file to its final name, and update its sidecar."""
    old = None
    if sidecar is not None:
        # Checked here as well: while a large file is written, another program may use its name.
        if not is_available(path, sidecar.run):
            raise FileExistsError(errno.EEXIST, "a file of this name exists that this run did not write", str(path))
        old = read_sidecar(path) if os.path.lexists(path) else None
        # An interrupted replacement leaves entries of earlier files; any of these may be the file on disk.
        replaced = (replace(old, previous=()), *old.previous) if old else ()
        # The sidecar comes first: if the process is killed before the rename, the old file still matches an entry.
        _write_sidecar(path, replace(sidecar, previous=(*sidecar.previous, *replaced)))
    os.replace(temporary, path)
    fsync(path.parent)
    if sidecar is not None and old is not None:
        # The new file is committed and matches its sidecar. This only drops the entries of replaced files.
        with suppress(OSError):
            _write_sidecar(path, sidecar)


def remove(path: Path) -> None:
    """Delete a file and its sidecar. Crash-safe: an interrupted call never leaves a file without an owner."""
    sidecar = read_sidecar(path)
    with _temporary_path(path, sidecar.run if sidecar is not None else "") as hidden:
        # The temporary name contains the ID of the run, so `remove_temporary_files` deletes the file after a kill.
        with suppress(FileNotFoundError):
            os.replace(path, hidden)
            # Durable before the sidecar is removed: after a power failure, the file could exist without it.
            fsync(path.parent)
        get_sidecar_path(path).unlink(missing_ok=True)


def remove_orphaned_sidecars(directory: Path, run: str) -> None:
    """Delete the sidecars of a run whose files do not exist: the run was killed while it created or removed a file.

    No process may be writing into the directory.

    Args:
        directory: Directory to clean up; it may be missing.
        run: ID of the run; "" removes nothing.
    """
    for path in directory.glob(f"[!.]*{SIDECAR_SUFFIX}") if run else ():
        file = path.with_name(path.name.removesuffix(SIDECAR_SUFFIX))
        # A copy of a sidecar under another name contains the original name, and is foreign.
        sidecar = None if os.path.lexists(file) else read_sidecar(file)
        if sidecar is not None and (sidecar.run, sidecar.name) == (run, file.name):
            path.unlink(missing_ok=True)


def make_temporary_name(run: str) -> str:
    """Return a hidden, unique file name that contains the ID of the run that owns the file.

    Args:
        run: ID of the run; "" for a file that belongs to no run.
    """
    return f"{TEMPORARY_PREFIX}{run}-{uuid.uuid4().hex}" if run else f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


def remove_temporary_files(directory: Path, run: str) -> None:
    """Delete the temporary files that killed processes of a run left in a directory.

    The ID in the name identifies the owner. Every other file named `.tmp-*` is foreign and is not modified. No process
    may be writing into the directory.

    Args:
        directory: Directory to clean up; it may be missing.
        run: ID of the run; "" removes nothing.
    """
    prefix = f"{TEMPORARY_PREFIX}{run}-"
    for leftover in directory.glob(f"{TEMPORARY_PREFIX}*") if run else ():
        is_own = leftover.name.startswith(prefix) and UUID_PATTERN.fullmatch(leftover.name.removeprefix(prefix))
        # A symlink is foreign: hookbus creates none.
        if not is_own or leftover.is_symlink():
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


def write_json(path: Path, value: Any, run: str = "") -> None:
    """Write a small JSON file atomically.

    Args:
        path: Final path.
        value: Mappings, sequences, strings and numbers, including those of NumPy and torch. NaN and infinity become
            null, since JSON has no such numbers; any other object becomes its `str`.
        run: ID of the run that owns the file; "" if it belongs to no run.

    Raises:
        OSError: If the file could not be written; the file under `path` is unchanged.
    """
    content = format_json(value).encode()
    atomic_write(path, lambda file: file.write(content), run=run)


def format_json(value: Any, indent: int | None = 2) -> str:
    """Return a value as a JSON document, see `write_json`.

    Args:
        value: Value as in `write_json`.
        indent: Number of spaces per level; None for one line. Default: 2.
    """
    return json.dumps(_to_json(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def read_sidecar(path: Path) -> Sidecar | None:
    """Return the sidecar of a file, None if it is missing or corrupted."""
    try:
        fields = parse_json(read_regular_file(get_sidecar_path(path), MAX_SIDECAR_SIZE))
        _check_sidecar(fields, "")
    except (OSError, ValueError):
        return None
    return _parse_sidecar(fields) if fields.pop("check", None) == checksum(fields) else None


def written_by(path: Path, run: str) -> bool:
    """Return whether a file was written by the run with this ID, according to its sidecar.

    A link, a directory, or a file of another size than in the sidecar has replaced the file that the run wrote, unless
    that file was truncated.
    """
    sidecar = read_sidecar(path)
    if sidecar is None or sidecar.run != run or not path.is_file() or path.is_symlink():
        return False
    sizes, size = [entry.size for entry in (sidecar, *sidecar.previous)], path.stat().st_size
    return size in sizes or (size < max(sizes) and _is_truncated_archive(path))


def is_available(path: Path, run: str) -> bool:
    """Return whether a run can write a file: neither it nor its sidecar exists, or the run has written them.

    Args:
        path: Path of the file.
        run: ID of the run.
    """
    if os.path.lexists(path):
        return written_by(path, run)
    if not os.path.lexists(get_sidecar_path(path)):
        return True
    sidecar = read_sidecar(path)
    # Without the file, the run was killed between writing the two.
    return sidecar is not None and sidecar.run == run


def verify(path: Path) -> Sidecar:
    """Verify size and hash of a file against its sidecar.

    Returns:
        Entry of the sidecar that the file matches.

    Raises:
        CheckpointError: If the file or its sidecar is missing.
        CheckpointCorruptedError: If the file matches no entry of its sidecar.
    """
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
    entries = [
        (_current_entry(path, sidecar), path)
        for path in directory.glob(pattern)
        if (sidecar := _read_visible_sidecar(path))
    ]
    # At equal generations, a completed file precedes one whose replacement was interrupted; the name breaks ties.
    entries.sort(key=lambda item: (-item[0].generation, bool(item[0].previous), item[1].name))
    return [path for _, path in entries]


def hash_file(path: Path) -> str:
    """Return the XXH3-128 hash of a file, in hex.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
    """
    digest = _create_hasher()
    with open_regular_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checksum(fields: Mapping[str, Any]) -> str:
    """Return a checksum, in hex, of the fields of a sidecar or manifest; it detects corruption of that file itself."""
    digest = _create_hasher()
    digest.update(json.dumps(fields, sort_keys=True).encode())
    return digest.hexdigest()


class _HashingFile:
    """File wrapper that hashes and counts the written bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = _create_hasher()
        self.size = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        # torch.save writes buffers as well as bytes, and `len` of a typed buffer counts items.
        self.size += len(memoryview(data).cast("B")) if not isinstance(data, bytes) else len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _temporary_path(path: Path, run: str) -> Iterator[Path]:
    """Yield a hidden path in the directory of `path`, and delete the file on exit."""
    # A rename is atomic only within one file system, hence the same directory.
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / make_temporary_name(run)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _to_json(value: Any) -> Any:
    # Scalars of NumPy and torch have `item`; duck typing avoids importing either package here.
    if hasattr(value, "item") and getattr(value, "shape", ()) == ():
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _is_truncated_archive(path: Path) -> bool:
    """Return whether a file is empty, or a zip file such as those of torch without its end, which nobody can load."""
    with open(path, "rb") as file:
        return file.read(len(ZIP_MAGIC)) in (b"", ZIP_MAGIC) and not zipfile.is_zipfile(path)


def _write_sidecar(path: Path, sidecar: Sidecar) -> None:
    fields = asdict(sidecar)
    write_json(get_sidecar_path(path), {**fields, "check": checksum(fields)}, sidecar.run)


def _parse_sidecar(fields: Mapping[str, Any]) -> Sidecar:
    own = {field.name: fields[field.name] for field in get_fields(Sidecar) if field.name in fields}
    return Sidecar(**{**own, "previous": tuple(map(_parse_sidecar, fields["previous"]))})


def _read_visible_sidecar(path: Path) -> Sidecar | None:
    return None if path.name.startswith(".") else read_sidecar(path)


def _current_entry(path: Path, sidecar: Sidecar) -> Sidecar:
    """Return the entry that matches the file on disk; for a corrupted file, the entry of the expected file."""
    # Hashing is needed only if an interrupted replacement left several candidates.
    if not sidecar.previous:
        return sidecar
    try:
        return sidecar.matching_entry(path.stat().st_size, lambda: hash_file(path)) or sidecar
    except OSError:  # reported when the file is verified
        return sidecar


def get_sidecar_path(path: Path) -> Path:
    """Return the path of the sidecar of a file."""
    return path.with_name(path.name + SIDECAR_SUFFIX)


def _create_hasher() -> xxhash.xxh3_128:
    # Imported on first use to keep `import hookbus` fast.
    import xxhash

    return xxhash.xxh3_128()
