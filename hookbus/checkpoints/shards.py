"""Sharded tensors in the file format of `torch.distributed.checkpoint`: every rank writes its shards to one file.

The metadata of this format is a pickle. It is loaded with an allowlist of classes, so that it cannot execute code.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from hookbus.checkpoints.files import fsync, hash_file
from hookbus.errors import CheckpointCorruptedError, CheckpointError, format_error

__all__ = ["read_shards", "write_shards"]

METADATA_FILE = ".metadata"

ALLOWED_GLOBALS = frozenset(
    {
        ("pathlib", "PosixPath"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
    }
)
"""Classes and functions that the metadata may refer to, in addition to the dtypes of torch."""


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
            save(tensors, storage_writer=FileSystemWriter(directory, thread_count=1), process_group=own_group)
        except CheckpointException as error:  # derives from BaseException, so callers would not handle it
            raise CheckpointError(f"{directory.parent} could not be written: {_format_cause(error)}.") from None
    own = [*directory.glob(f"__{rank}_*"), *([directory / METADATA_FILE] if rank == 0 else [])]
    for path in own:
        fsync(path)
    return {path.name: (path.stat().st_size, hash_file(path)) for path in own}


def read_shards(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Load full tensors, or the local shards of sharded tensors. Not a collective call.

    Args:
        directory: Directory written by any number of ranks.
        tensors: Tensors to load into, by name: full or sharded, with the shapes of the written tensors.

    Raises:
        CheckpointDamaged: If the files are missing, or contain other objects than data.
    """
    try:
        with warnings.catch_warnings():
            # torch warns about a missing process group even if `no_dist` is set.
            warnings.filterwarnings("ignore", "torch.distributed is ", UserWarning)
            load(tensors, storage_reader=_Reader(directory), no_dist=True)
    except (Exception, CheckpointException) as error:
        cause = _format_cause(error) if isinstance(error, CheckpointException) else error
        raise CheckpointCorruptedError(f"{directory}: shards cannot be loaded as data: {cause}.") from None


# -- inside ----------------------------------------------------------------------------------


@contextmanager
def _temporary_group() -> Iterator[Any]:
    """Create a gloo group of all ranks for one save."""
    # Its own group keeps the collectives of the save apart from others; gloo requires no device.
    group = dist.new_group(backend="gloo")
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _format_cause(error: CheckpointException) -> str:
    rank, (cause, _) = next(iter(error.failures.items()))
    return f"{format_error(cause)} (on rank {rank})"


class _Reader(FileSystemReader):
    """Storage reader that loads metadata with an allowlist, and rejects paths outside the directory."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        with open(Path(self.path) / METADATA_FILE, "rb") as file:
            metadata: Metadata = _Unpickler(file).load()
        stored = metadata.storage_data.values()
        # A relative path with a slash could refer to any file on the machine.
        if any("/" in info.relative_path for info in stored):
            raise pickle.UnpicklingError("it refers to a file outside its directory")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        attribute = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in ALLOWED_GLOBALS or isinstance(attribute, torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}, and loading that would execute code")
