"""Atomic file writes with checksums.

Each file is written under a hidden temporary name in its own directory, fsynced and renamed; then the directory is
fsynced. The sidecar of a checkpoint, see `hookbus.checkpoint.sidecars`, is replaced before the file and lists both the
new and the replaced file. The file under the final name therefore matches an entry of its sidecar whenever the process
is killed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from hookbus._utils.system import replace_file
from hookbus.checkpoint import sidecars
from hookbus.checkpoint.file_system import add_path, fsync, fsync_file, link_or_copy
from hookbus.errors import CheckpointError, format_path

TEMPORARY_PREFIX = ".tmp-"
UUID_PATTERN = re.compile(r"[0-9a-f]{32}")


def atomic_write(
    path: Path, write: Callable[[IO[bytes]], object], generation: int | None = None, run: str = ""
) -> sidecars.Sidecar:
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
        sidecar = sidecars.Sidecar(path.name, hashing.size, hashing.digest.hexdigest(), generation or 0, run=run)
        _publish(temporary, path, sidecar if generation is not None else None)
    return sidecar


def commit_file(temporary: Path, path: Path) -> None:
    """Rename a complete file to its final name, which it has after a power failure as well.

    Args:
        temporary: File on the same file system as `path`.
        path: Final path; an existing file is replaced.

    Raises:
        OSError: If the file cannot be renamed; the file under `path` is unchanged.
    """
    with add_path(path):
        with open(temporary, "r+b") as file:
            fsync_file(file.fileno(), temporary)
        replace_file(temporary, path)
        fsync(path.parent)


def add_link(source: Path, target: Path) -> None:
    """Add a second name to a committed file, see `CheckpointStore.add_link`."""
    sidecar = sidecars.read_sidecar(source)
    if sidecar is None:
        name = format_path(sidecars.get_sidecar_path(source).name)
        raise CheckpointError(
            f"{format_path(source)}: {name} is missing or corrupted, so the link {format_path(target.name)} cannot be "
            "created."
        )
    with _temporary_path(target, sidecar.run) as temporary, add_path(target):
        # `os.link` fails if the target exists, so the link gets a temporary name and is renamed.
        link_or_copy(source, temporary)
        _publish(temporary, target, replace(sidecar, name=target.name))


def _publish(temporary: Path, path: Path, sidecar: sidecars.Sidecar | None) -> None:
    """Rename a complete temporary file to its final name, and update its sidecar."""
    old = None
    if sidecar is not None:
        # Checked here as well: while a large file is written, another program may use its name.
        if not sidecars.is_available(path, sidecar.run):
            raise FileExistsError(errno.EEXIST, "a file of this name exists that this run did not write", str(path))
        old = sidecars.load_sidecar(path) if os.path.lexists(path) else None
        # An interrupted replacement leaves entries of earlier files; any of these may be the file on disk.
        replaced = (replace(old, previous=()), *old.previous) if old else ()
        # The sidecar comes first: if the process is killed before the rename, the old file still matches an entry.
        _write_sidecar(path, replace(sidecar, previous=(*sidecar.previous, *replaced)))
    replace_file(temporary, path)
    fsync(path.parent)
    if sidecar is not None and old is not None:
        # The new file is committed and matches its sidecar. This only drops the entries of replaced files.
        with suppress(OSError):
            _write_sidecar(path, sidecar)


def remove(path: Path) -> None:
    """Delete a file and its sidecar. Crash-safe: an interrupted call never leaves a file without an owner."""
    sidecar = sidecars.load_sidecar(path)
    with _temporary_path(path, sidecar.run if sidecar is not None else "") as hidden:
        # The temporary name contains the ID of the run, so `remove_temporary_files` deletes the file after a kill.
        with suppress(FileNotFoundError):
            replace_file(path, hidden)
            # Durable before the sidecar is removed: after a power failure, the file could exist without it.
            fsync(path.parent)
        sidecars.get_sidecar_path(path).unlink(missing_ok=True)
        # Not left to the cleanup of the temporary name, which ignores errors: the space would stay in use.
        hidden.unlink(missing_ok=True)


def remove_orphaned_sidecars(directory: Path, run: str) -> None:
    """Delete the sidecars of a run whose files do not exist: the run was killed while it created or removed a file.

    No process may be writing into the directory.

    Args:
        directory: Directory to clean up; it may be missing.
        run: ID of the run; "" removes nothing.
    """
    for path in directory.glob(f"[!.]*{sidecars.SIDECAR_SUFFIX}") if run else ():
        file = path.with_name(path.name.removesuffix(sidecars.SIDECAR_SUFFIX))
        # A copy of a sidecar under another name contains the original name, and is foreign.
        sidecar = None if os.path.lexists(file) else sidecars.read_sidecar(file)
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


class _HashingFile:
    """File wrapper that hashes and counts the written bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = sidecars.create_hasher()
        self.size = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += memoryview(data).nbytes  # torch.save writes buffers as well, and `len` counts their items
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
        # An error must neither hide that of the write nor fail a complete one. The next run removes a leftover file.
        with suppress(OSError):
            temporary.unlink()


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


def _write_sidecar(path: Path, sidecar: sidecars.Sidecar) -> None:
    fields = asdict(sidecar)
    write_json(sidecars.get_sidecar_path(path), {**fields, "check": sidecars.checksum(fields)}, sidecar.run)
