"""Checkpoints of sharded tensors (FSDP2): written by all ranks, loaded by any number of ranks.

Every rank writes its local shards through `torch.distributed.checkpoint` into one directory, which
`hookbus.checkpoint.generations` commits atomically. The tensors are loaded with the sharding of the current run,
whatever its world size, or as full tensors. As in every checkpoint, loading executes no code: the metadata of the
shards is JSON instead of torch's pickle.
"""

from __future__ import annotations

import shutil
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult

from hookbus._utils.schema import InvalidDataError, mapping_of, string
from hookbus._utils.torch_versions import ignore_storage_warnings, load_shards
from hookbus.checkpoint.atomic_files import atomic_write, make_temporary_name
from hookbus.checkpoint.file_system import fsync
from hookbus.checkpoint.generations import (
    COMMON_FILE,
    POINTER_KEY,
    commit_generation,
    get_directory_name,
    write_manifest,
)
from hookbus.checkpoint.load import load_file, save_file
from hookbus.checkpoint.shard_metadata import METADATA_FILE, read_metadata, write_metadata
from hookbus.checkpoint.sidecars import hash_file
from hookbus.distributed.process_group import destroy_group
from hookbus.distributed.sharding import is_sharded, tree_map_with_path
from hookbus.errors import CheckpointCorruptedError, CheckpointError, format_error

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives
    from hookbus.distributed.sharding import ShardingSpec


def write_shards(
    directory: Path, tensors: dict[str, Tensor], rank: int, group: dist.ProcessGroup | None = None
) -> dict[str, tuple[int, str]]:
    """Write the local shards of tensors and fsync them. A collective call.

    Args:
        directory: Directory to write to; it is created if it does not exist.
        tensors: Sharded tensors by name, with the same names on all ranks.
        rank: Rank of this process.
        group: gloo group of all ranks without concurrent collectives; None to create one. Required outside the main
            thread, since torch numbers process groups in order of creation, which must be the same on all ranks.

    Returns:
        Size and hash, by file name, of the files written by this rank.

    Raises:
        CheckpointError: If a rank could not write its shards; raised on all ranks.
    """
    with _temporary_group() if group is None else nullcontext(group) as own_group:
        try:
            # One thread per rank writes one file per rank.
            writer = _Writer(directory, thread_count=1, sync_files=False)  # synced below
            with ignore_storage_warnings():
                save(tensors, storage_writer=writer, process_group=own_group)
        except CheckpointException as error:  # derives from BaseException, so callers would not handle it
            raise CheckpointError(f"{directory.parent} could not be written: {_format_cause(error)}.") from None
    own = [*directory.glob(f"__{rank}_*"), *([directory / METADATA_FILE] if rank == 0 else [])]
    for path in own:
        fsync(path)
    return {path.name: (path.stat().st_size, hash_file(path)) for path in own}


def _read_metadata(directory: Path) -> Metadata:
    try:
        return read_metadata(directory)
    except OSError as error:
        raise _make_shards_error(directory, f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise _make_shards_error(directory, f"{METADATA_FILE}: {error}") from None


def _load_shards(directory: Path, tensors: dict[str, Tensor], metadata: Metadata) -> None:
    try:
        load_shards(tensors, _Reader(directory, metadata))
    except (Exception, CheckpointException) as error:
        cause = _format_cause(error) if isinstance(error, CheckpointException) else format_error(error)
        raise _make_shards_error(directory, cause) from None


def _make_shards_error(directory: Path, reason: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(f"{directory}: shards cannot be loaded as data: {reason}.")


@contextmanager
def _temporary_group() -> Iterator[Any]:
    """Create a gloo group of all ranks for one save."""
    # Its own group keeps the collectives of the save apart from others; gloo requires no device.
    group = dist.new_group(backend="gloo")
    try:
        yield group
    finally:
        destroy_group(group)


def _format_cause(error: CheckpointException) -> str:
    rank, (cause, _) = next(iter(error.failures.items()))
    return f"{format_error(cause)} (on rank {rank})"


class _Writer(FileSystemWriter):
    """Storage writer that writes the metadata as JSON instead of a pickle."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        storage = {result.index: result.storage_data for rank_results in results for result in rank_results}
        write_metadata(Path(self.path), metadata, storage)


class _Reader(FileSystemReader):
    """Storage reader of shards with validated metadata."""

    def __init__(self, directory: Path, metadata: Metadata) -> None:
        super().__init__(directory)
        self._metadata = metadata

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        return self._metadata


NAMES_KEY = "places"
"""Key of the common file: name of the sharded tensor by path in the checkpoint."""

_check_names = mapping_of(string())


def write_generation(folder: Path, checkpoint: dict[str, Any], generation: int, ranks: Collectives) -> dict[str, Any]:
    """Write a checkpoint with sharded tensors below a folder, see `CheckpointStore.write_sharded`."""
    common, tensors = _split_sharded(checkpoint)
    final, run = folder / get_directory_name(generation), checkpoint["loop"]["id"]
    # The unique part of the name is random, so rank 0 chooses it for all ranks.
    temporary = folder / ranks.broadcast("name of a generation", make_temporary_name(run))
    metadata = {"generation": generation, "run": run, "processes": ranks.world_size, "torch": str(torch.__version__)}

    def write() -> dict[str, tuple[int, str]]:
        with _wrap_os_errors(final):
            return write_shards(temporary, tensors, ranks.rank, ranks.group)

    def commit() -> str:
        with _wrap_os_errors(final):
            file = atomic_write(temporary / COMMON_FILE, partial(save_file, common))
            manifest = write_manifest(temporary, {**files, COMMON_FILE: (file.size, file.hash)}, **metadata)
            commit_generation(temporary, final)
            return manifest

    try:
        files = dict(ChainMap(*ranks.call_on_all("tensors of a generation", write)))
        # Only rank 0 commits, after all ranks have fsynced their shards.
        manifest = ranks.call_on_main("generation", commit)
    finally:
        # A no-op after the rename.
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
    pointer = {"directory": final.name, "manifest": manifest}
    return {"meta": checkpoint["meta"], "loop": {"id": run}, POINTER_KEY: pointer}


def read_generation(
    directory: Path, *, map_location: Any = "cpu", sharding: ShardingSpec | None = None
) -> dict[str, Any]:
    """Load a checkpoint with sharded tensors, without verifying it. Not a collective call.

    Args:
        directory: Directory of the generation.
        map_location: Device of the tensors; "meta" to load their metadata only. Default: "cpu".
        sharding: Sharding of the tensors that were sharded when they were written; None for full tensors.

    Raises:
        CheckpointError: If a file does not exist.
        CheckpointCorruptedError: If a file is corrupted, or contains other objects than data.
    """
    common = load_file(directory / COMMON_FILE, map_location=map_location)
    names = _pop_names(directory, common)
    if map_location == "meta":
        return common
    metadata = _read_metadata(directory)
    tensors: dict[str, Tensor] = {}

    def allocate(path: tuple[str, ...], value: Any) -> Any:
        name = names.get(_format_name(path))
        if name is None:
            return value
        _check_stored(directory, name, value, metadata)
        # Tensors with the same name were one object when they were written, and share memory again.
        if name not in tensors:
            tensors[name] = (
                torch.empty(value.shape, dtype=value.dtype, device=map_location)
                if sharding is None
                else sharding.empty(value)
            )
        return tensors[name]

    checkpoint: dict[str, Any] = tree_map_with_path(common, allocate)
    if tensors:
        _load_shards(directory, tensors, metadata)
    return checkpoint


def _pop_names(directory: Path, common: dict[str, Any]) -> dict[str, str]:
    """Remove and return the names of the sharded tensors by path."""
    names: dict[str, str] = common.pop(NAMES_KEY, None)
    try:
        _check_names(names, NAMES_KEY)
    except InvalidDataError as error:
        raise CheckpointCorruptedError(f"{directory / COMMON_FILE}: {error}.") from None
    return names


def _check_stored(directory: Path, name: str, value: Any, metadata: Metadata) -> None:
    """Raise unless a tensor of the common file is among the shards, before memory is allocated for it."""
    stored = metadata.state_dict_metadata.get(name)
    if not isinstance(stored, TensorStorageMetadata) or not isinstance(value, Tensor):
        raise _make_shards_error(directory, f"{name[:80]!r}: expected a tensor in {COMMON_FILE} and {METADATA_FILE}")
    if (value.shape, value.dtype) != (stored.size, stored.properties.dtype):
        shapes = f"{list(stored.size)} in {METADATA_FILE}, and {list(value.shape)} in {COMMON_FILE}"
        raise _make_shards_error(directory, f"{name[:80]!r}: the shape or dtype differs: {shapes}")


def _split_sharded(checkpoint: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a checkpoint into its common part, with meta tensors, and the sharded tensors by name."""
    tensors: dict[str, Tensor] = {}
    name_by_id: dict[int, str] = {}
    names: dict[str, str] = {}

    def to_meta(path: tuple[str, ...], value: Any) -> Any:
        if not is_sharded(value):
            return value
        key = _format_name(path)
        # A tensor at several paths, such as a tied weight, is written once under its first path.
        name = names[key] = name_by_id.setdefault(id(value), key)
        tensors[name] = value.detach()
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    return {**tree_map_with_path(checkpoint, to_meta), NAMES_KEY: names}, tensors


def _format_name(path: tuple[str, ...]) -> str:
    # Keys may contain slashes, so they are percent-encoded to keep names unique.
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in path)


@contextmanager
def _wrap_os_errors(directory: Path) -> Iterator[None]:
    """Raise a CheckpointError with the directory instead of an OSError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{directory} could not be written: {error}.") from error
