"""Files that are either there and whole, or not there.

Every file is written under a hidden temporary name in its own directory, flushed to the disk, renamed, and its
directory flushed. A checkpoint gets a sidecar `<file>.json` with name, size, hash (XXH3) and generation, and a hash of
these. The sidecar is replaced first, and knows the file that is being replaced as well: whenever the process dies, the
file under its final name is one that its sidecar vouches for. The hashes find damage; they are no defence against
someone who edits both files.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hookbus.errors import CheckpointDamaged, CheckpointError

if TYPE_CHECKING:
    import xxhash

__all__ = [
    "Sidecar",
    "check_of",
    "commit",
    "flush",
    "hash_file",
    "is_of",
    "link",
    "newest_first",
    "read_sidecar",
    "remove",
    "remove_leftovers",
    "temporary_name",
    "verify",
    "write_json",
]

SIDECAR = ".json"
TEMPORARY = ".tmp-"
UNIQUE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What is known of a committed file.

    Attributes:
        name: its file name.
        size: bytes.
        hash: the XXH3-128 hash of the bytes, in hex.
        generation: grows with every save of a run; the newest file has the largest.
        run: the id of the run that wrote it; "" where the file does not tell.
        previous: the file that this one was replacing, while that was going on.
    """

    name: str
    size: int
    hash: str
    generation: int
    previous: tuple[Sidecar, ...] = ()
    run: str = ""

    def vouches(self, size: int, digest: Callable[[], str]) -> Sidecar | None:
        """The entry that these bytes belong to, None if they are damaged."""
        sizes = [entry for entry in (self, *self.previous) if entry.size == size]
        return next((entry for entry in sizes if entry.hash == digest()), None)


def commit(path: Path, write: Callable[[IO[bytes]], object], generation: int | None = None, run: str = "") -> Sidecar:
    """Write a file so that it is either there and whole, or not there; an older one stays until then.

    Args:
        path: the final name.
        write: given a binary file to write to.
        generation: makes a sidecar with this generation; None for a file without sidecar.
        run: ID of the run, for the sidecar and the temporary file; "" if the file belongs to no run.

    Returns:
        Size and hash of what was written.

    Raises:
        OSError: the file could not be written; nothing changed under `path`.
    """
    with _temporary(path, run) as temporary:
        with open(temporary, "wb") as file:
            hashing = _Hashing(file)
            write(hashing)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        sidecar = Sidecar(path.name, hashing.size, hashing.digest.hexdigest(), generation or 0, run=run)
        _publish(temporary, path, sidecar if generation is not None else None)
    return sidecar


def link(source: Path, target: Path) -> None:
    """Give a committed file a second name: a hard link, or a copy where the file system has none.

    Raises:
        CheckpointError: the source has no sidecar.
    """
    sidecar = read_sidecar(source)
    if sidecar is None:
        raise CheckpointError(f"{source}: it has no sidecar, so it cannot be given the name {target.name}.")
    with _temporary(target, sidecar.run) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            _copy(source, temporary)
        _publish(temporary, target, replace(sidecar, name=target.name))


def _publish(temporary: Path, path: Path, sidecar: Sidecar | None) -> None:
    """Put a complete temporary file in its place."""
    old = read_sidecar(path) if sidecar is not None and path.exists() else None
    if sidecar is not None:
        replaced = (replace(old, previous=()), *old.previous) if old else ()
        _write_sidecar(path, replace(sidecar, previous=(*sidecar.previous, *replaced)))
    os.replace(temporary, path)
    flush(path.parent)
    if sidecar is not None and old is not None:
        with suppress(OSError):  # the file is in its place, and vouched for: this only forgets the older one
            _write_sidecar(path, sidecar)


def remove(path: Path) -> None:
    """Delete a file and its sidecar. Cut off in between, it leaves no file of which nobody knows whose it is."""
    sidecar = read_sidecar(path)
    with _temporary(path, sidecar.run if sidecar is not None else "") as hidden:
        with suppress(FileNotFoundError):
            os.replace(path, hidden)
        _sidecar_path(path).unlink(missing_ok=True)


def temporary_name(run: str) -> str:
    """Return a hidden, unique file name that contains the ID of the run that owns the file.

    Args:
        run: ID of the run; "" for a file that belongs to no run.
    """
    return f"{TEMPORARY}{run}-{uuid.uuid4().hex}" if run else f"{TEMPORARY}{uuid.uuid4().hex}"


def remove_leftovers(directory: Path, run: str) -> None:
    """Delete the temporary files that killed processes of a run left in a directory.

    The ID in the name identifies the owner. Every other file named `.tmp-*` is foreign and is not modified. No process
    may be writing into the directory.

    Args:
        directory: Directory to clean up; it may be missing.
        run: ID of the run; "" removes nothing.
    """
    prefix = f"{TEMPORARY}{run}-"
    for leftover in directory.glob(f"{TEMPORARY}*") if run else ():
        is_own = leftover.name.startswith(prefix) and UNIQUE.fullmatch(leftover.name.removeprefix(prefix))
        # hookbus creates no symlinks
        if not is_own or leftover.is_symlink():
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


def write_json(path: Path, value: Any, run: str = "") -> None:
    """Write a small JSON file, whole or not at all.

    Args:
        path: the final name.
        value: mappings, sequences, texts and numbers, those of NumPy and torch included; NaN and infinity become null,
            which JSON has instead, and anything else its text.
        run: ID of the run that owns the file; "" if it belongs to no run.

    Raises:
        OSError: the file could not be written; nothing changed under `path`.
    """
    text = json.dumps(_in_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    commit(path, lambda file: file.write(text.encode()), run=run)


def read_sidecar(path: Path) -> Sidecar | None:
    """The sidecar of a file; None where there is none or where it is damaged."""
    try:
        fields = json.loads(_sidecar_path(path).read_text())
        return _sidecar(fields) if fields.pop("check") == check_of(fields) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_of(path: Path, run: str) -> bool:
    """Whether a file was written by the run of this id, as its sidecar says."""
    sidecar = read_sidecar(path)
    return sidecar is not None and sidecar.run == run


def verify(path: Path) -> Sidecar:
    """Compare a file with its sidecar, byte for byte by its hash.

    Raises:
        CheckpointError: there is no such file, or no sidecar for it.
        CheckpointDamaged: a byte is missing, too many or changed.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file.")
    sidecar = read_sidecar(path)
    if sidecar is None:
        raise CheckpointError(f"{path}: {path.name}{SIDECAR} is missing or damaged, so it cannot be verified.")
    size = path.stat().st_size
    entry = sidecar.vouches(size, functools.cache(lambda: hash_file(path)))
    if entry is None:
        was = "its bytes are not those that were saved" if size == sidecar.size else f"{size} bytes, not {sidecar.size}"
        raise CheckpointDamaged(f"{path}: damaged: {was}.")
    return entry


def newest_first(directory: Path, pattern: str = "*.pth") -> list[Path]:
    """The files of a directory that have a sidecar, the newest generation first; hidden names are ignored.

    A file whose replacement was cut off has the generation of what it really holds, which its bytes tell.
    """
    found = [(_held(path, sidecar), path) for path in directory.glob(pattern) if (sidecar := _visible(path))]
    newest = sorted(found, key=lambda each: (-each[0].generation, bool(each[0].previous), each[1].name))
    return [path for _, path in newest]


def hash_file(path: Path) -> str:
    """The XXH3-128 hash of a file, in hex."""
    digest = _digest()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_of(fields: Mapping[str, Any]) -> str:
    """A hash of what a sidecar or a manifest says, in hex, so that damage to itself is noticed."""
    digest = _digest()
    digest.update(json.dumps(fields, sort_keys=True).encode())
    return digest.hexdigest()


def flush(path: Path) -> None:
    """Have the disk hold what was written to a file, or the names that were made or changed in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Hashing:
    """A file that hashes and counts what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = _digest()
        self.size = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(memoryview(data).cast("B")) if not isinstance(data, bytes) else len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _temporary(path: Path, run: str) -> Iterator[Path]:
    """A hidden name beside `path`, gone afterwards whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / temporary_name(run)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _in_json(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "shape", ()) == ():
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _in_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_json(each) for each in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as read, open(target, "wb") as write:
        while block := read.read(1 << 20):
            write.write(block)
        write.flush()
        os.fsync(write.fileno())


def _write_sidecar(path: Path, sidecar: Sidecar) -> None:
    fields = asdict(sidecar)
    write_json(_sidecar_path(path), {**fields, "check": check_of(fields)}, sidecar.run)


def _sidecar(fields: dict[str, Any]) -> Sidecar:
    return Sidecar(**{**fields, "previous": tuple(map(_sidecar, fields["previous"]))})


def _visible(path: Path) -> Sidecar | None:
    return None if path.name.startswith(".") else read_sidecar(path)


def _held(path: Path, sidecar: Sidecar) -> Sidecar:
    """What is known of the file that is there: of a damaged one, what should be there."""
    if not sidecar.previous:
        return sidecar
    return sidecar.vouches(path.stat().st_size, lambda: hash_file(path)) or sidecar


def _sidecar_path(path: Path) -> Path:
    return path.with_name(path.name + SIDECAR)


def _digest() -> xxhash.xxh3_128:
    import xxhash

    return xxhash.xxh3_128()
