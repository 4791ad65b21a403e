"""Metadata of the shards of a generation: names, shapes and dtypes of the tensors, and the location of each shard.

torch writes them as a pickle, whose loading can execute code. They are written as JSON instead, and torch's `Metadata`
is built from the validated values. The locations are relative to the directory.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from hookbus._utils.files import parse_json, read_regular_file
from hookbus._utils.schema import InvalidDataError, integer, join, list_of, mapping_of, record, shorten, string

METADATA_FILE = "metadata.json"

MAX_METADATA_SIZE = 1 << 30
"""Maximum size in bytes. A shard has about 150 bytes."""

DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}

_shape = list_of(integer(), maximum=64)
_file = string(r"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_shard = record({"offsets": _shape, "sizes": _shape, "file": _file, "position": integer(), "length": integer()})
_tensor = record({"dtype": string(maximum=64), "size": _shape, "shards": list_of(_shard)})
_check_content = record({"tensors": mapping_of(_tensor)})


def write_metadata(directory: Path, metadata: Metadata, storage: Mapping[MetadataIndex, _StorageInfo]) -> None:
    """Write the metadata of the shards in a directory.

    Raises:
        OSError: If the file could not be written.
    """
    tensors = {name: _describe_tensor(name, entry, storage) for name, entry in metadata.state_dict_metadata.items()}
    (directory / METADATA_FILE).write_text(json.dumps({"tensors": tensors}, separators=(",", ":")), encoding="utf-8")


def read_metadata(directory: Path) -> Metadata:
    """Return the metadata of the shards in a directory, after a check that the shards exist and form the tensors.

    Raises:
        OSError: If a file cannot be read, or is not a regular file.
        ValueError: If the metadata is invalid; the message contains the key.
    """
    content = parse_json(read_regular_file(directory / METADATA_FILE, MAX_METADATA_SIZE))
    _check_content(content, "")
    tensors: dict[str, Any] = content["tensors"]
    files = {shard["file"] for entry in tensors.values() for shard in entry["shards"]}
    file_sizes = {name: _get_file_size(directory / name) for name in files}
    for name, entry in tensors.items():
        _check_tensor(join("tensors", name), entry, file_sizes)
    storage = {
        MetadataIndex(name, shard["offsets"]): _StorageInfo(shard["file"], shard["position"], shard["length"])
        for name, entry in tensors.items()
        for shard in entry["shards"]
    }
    built = {name: _build_tensor(entry) for name, entry in tensors.items()}
    return Metadata(built, storage_data=storage, storage_meta=StorageMeta())  # type: ignore[arg-type]


def _describe_tensor(name: str, entry: Any, storage: Mapping[MetadataIndex, _StorageInfo]) -> dict[str, Any]:
    shards = []
    for chunk in entry.chunks:
        info = storage[MetadataIndex(name, chunk.offsets)]
        location = {"file": info.relative_path, "position": info.offset, "length": info.length}
        shards.append({"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **location})
    dtype = str(entry.properties.dtype).removeprefix("torch.")
    return {"dtype": dtype, "size": list(entry.size), "shards": shards}


def _build_tensor(entry: Mapping[str, Any]) -> TensorStorageMetadata:
    shards = [ChunkStorageMetadata(torch.Size(s["offsets"]), torch.Size(s["sizes"])) for s in entry["shards"]]
    return TensorStorageMetadata(TensorProperties(DTYPES[entry["dtype"]]), torch.Size(entry["size"]), shards)


def _get_file_size(path: Path) -> int:
    status = os.stat(path, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size


def _check_tensor(key: str, entry: Mapping[str, Any], file_sizes: Mapping[str, int]) -> None:
    """Raise unless the shards of a tensor are inside of it and of their files, and have its number of elements."""
    if entry["dtype"] not in DTYPES:
        raise InvalidDataError(join(key, "dtype"), "a dtype of torch", shorten(entry["dtype"]))
    size, shards = entry["size"], entry["shards"]
    for i, shard in enumerate(shards):
        minimum = math.prod(shard["sizes"]) * DTYPES[entry["dtype"]].itemsize
        _check_shard(f"{key}.shards[{i}]", shard, size, minimum, file_sizes[shard["file"]])
    # A gap would leave a part of the tensor uninitialized. Several ranks may have an empty shard at the same offset.
    elements = sum(math.prod(shard["sizes"]) for shard in shards)
    offsets = [tuple(shard["offsets"]) for shard in shards if math.prod(shard["sizes"])]
    if elements != math.prod(size) or len(set(offsets)) < len(offsets):
        got = f"{elements} elements at {len(set(offsets))} offsets"
        raise InvalidDataError(f"{key}.shards", f"{math.prod(size)} elements at {len(offsets)} offsets", got)


def _check_shard(key: str, shard: Mapping[str, Any], size: list[int], minimum: int, file_size: int) -> None:
    """Raise unless a shard is inside of its tensor, and has at least `minimum` bytes inside of its file."""
    offsets, sizes = shard["offsets"], shard["sizes"]
    is_inside = all(begin + length <= end for begin, length, end in zip(offsets, sizes, size, strict=False))
    if not len(offsets) == len(sizes) == len(size) or not is_inside:
        raise InvalidDataError(key, f"a part of a tensor of size {size}", f"sizes {sizes} at {offsets}")
    available = file_size - shard["position"]
    if not minimum <= shard["length"] <= available:
        expected = f"{minimum} to {available} bytes of {shard['file']}"
        raise InvalidDataError(join(key, "length"), expected, shorten(shard["length"]))
