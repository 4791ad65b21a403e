"""Spread tensors in files, as `torch.distributed.checkpoint` writes them: every process its part, one file each.

Its metadata is a pickle. What is unpickled here goes through a list of what may be in it, so it can run no code.
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

from hookbus.checkpoints.files import flush, hash_file
from hookbus.errors import CheckpointDamaged, CheckpointError, in_one_line

__all__ = ["read_shards", "write_shards"]

METADATA = ".metadata"

SAFE = frozenset(
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
"""All that the metadata of spread tensors may be made of, besides plain values and types of numbers."""


def write_shards(
    directory: Path, tensors: dict[str, Tensor], rank: int, group: dist.ProcessGroup | None = None
) -> dict[str, tuple[int, str]]:
    """Write this process's part of spread tensors, and have it on the disk. Called on every process.

    Args:
        directory: where, made if it is not there.
        tensors: spread tensors by name, the same names everywhere.
        rank: the number of this process.
        group: a gloo group of all processes that nobody else uses meanwhile; None for a new one. On another thread none
            can be made, since torch numbers groups in the order in which they are made.

    Returns:
        Size and hash of the files that this process has written, by name.

    Raises:
        CheckpointError: a process could not write its part; raised on all of them.
    """
    with _own_group() if group is None else nullcontext(group) as own_group:
        try:
            save(tensors, storage_writer=FileSystemWriter(directory, thread_count=1), process_group=own_group)
        except CheckpointException as error:  # no Exception, so nobody would expect it
            raise CheckpointError(f"{directory.parent} could not be written: {_cause(error)}.") from None
    own = [*directory.glob(f"__{rank}_*"), *([directory / METADATA] if rank == 0 else [])]
    for path in own:
        flush(path)
    return {path.name: (path.stat().st_size, hash_file(path)) for path in own}


def read_shards(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Read tensors, or this process's part of them. Nothing is sent between processes.

    Args:
        directory: where they are, written by any number of processes.
        tensors: where the numbers go, by name: whole tensors or spread ones, of the shapes that were written.

    Raises:
        CheckpointDamaged: they are not there, or are more than data.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is ", UserWarning)  # it is not asked for
            load(tensors, storage_reader=_Reader(directory), no_dist=True)
    except (Exception, CheckpointException) as error:
        cause = _cause(error) if isinstance(error, CheckpointException) else error
        raise CheckpointDamaged(f"{directory}: it cannot be read as data: {cause}.") from None


# -- inside ----------------------------------------------------------------------------------


@contextmanager
def _own_group() -> Iterator[Any]:
    """A group of all processes for one save, so that it meets no other collective; gloo, so that it needs no device."""
    group = dist.new_group(backend="gloo")
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _cause(error: CheckpointException) -> str:
    rank, (cause, _) = next(iter(error.failures.items()))
    return f"{in_one_line(cause)} (on rank {rank})"


class _Reader(FileSystemReader):
    """Reads spread tensors, and takes nothing from their metadata that could run code or lead elsewhere."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        with open(Path(self.path) / METADATA, "rb") as file:
            metadata: Metadata = _Unpickler(file).load()
        stored = metadata.storage_data.values()
        if any("/" in each.relative_path for each in stored):
            raise pickle.UnpicklingError("it leads out of its directory")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in SAFE or isinstance(found, torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}, and reading that would run code")
