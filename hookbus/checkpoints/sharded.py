"""Checkpoints of sharded tensors (FSDP2): written by all ranks, loaded by any number of ranks.

Every rank writes its local shards through `torch.distributed.checkpoint` into one directory, which
`hookbus.checkpoints.generations` commits atomically. The tensors are loaded with the sharding of the current run,
whatever its world size, or as full tensors. As in every checkpoint, loading executes no code: the pickled metadata of
torch is loaded with an allowlist.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from hookbus.checkpoints.files import atomic_write, make_temporary_name
from hookbus.checkpoints.generations import (
    COMMON_FILE,
    POINTER_KEY,
    get_directory_name,
    commit_generation,
    write_manifest,
)
from hookbus.checkpoints.reading import load_file, save_file
from hookbus.checkpoints.shards import read_shards, write_shards
from hookbus.errors import CheckpointError
from hookbus.model.layouts import tree_map_with_path, is_sharded

T = TypeVar("T")

if TYPE_CHECKING:
    from hookbus.model.layouts import ShardingSpec
    from hookbus.ranks import Collectives

__all__ = ["read_generation", "write_generation"]


NAMES_KEY = "places"
"""Key of the common file: name of the sharded tensor by path in the checkpoint."""


def write_generation(folder: Path, checkpoint: dict[str, Any], generation: int, ranks: Collectives) -> dict[str, Any]:
    """Write a checkpoint with sharded tensors. A collective call, which fails on all ranks or on none.

    Args:
        folder: Directory in which the directory of the generation is created.
        checkpoint: Checkpoint of this rank. Values that are not sharded are taken from rank 0.
        generation: Number of the generation, whose directory does not exist yet.
        ranks: Collectives of the run; outside the main thread, those of a separate process group.

    Returns:
        Content of a file that refers to this generation.

    Raises:
        CheckpointError: If the generation could not be written. Nothing of it remains, and no other file is modified.
    """
    common, tensors = _split_sharded(checkpoint)
    final, run = folder / get_directory_name(generation), checkpoint["loop"]["id"]
    # The unique part of the name is random, so rank 0 chooses it for all ranks.
    temporary = folder / ranks.broadcast("name of a generation", make_temporary_name(run))
    try:
        write = partial(write_shards, temporary, tensors, ranks.rank, ranks.group)
        written = ranks.call_on_all("tensors of a generation", partial(_wrap_os_errors, final, write))
        files = {name: size_and_hash for rank_files in written for name, size_and_hash in rank_files.items()}
        facts = {"generation": generation, "run": run, "processes": ranks.world_size, "torch": str(torch.__version__)}
        finish = partial(_commit, temporary, final, common, files, facts)
        # Only rank 0 commits, after all ranks have fsynced their shards.
        manifest = ranks.call_on_main("generation", partial(_wrap_os_errors, final, finish))
    finally:
        # A no-op after the rename.
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
    pointer = {"directory": final.name, "manifest": manifest}
    return {"meta": checkpoint["meta"], "loop": {"id": run}, POINTER_KEY: pointer}


def read_generation(
    directory: Path, *, map_location: Any = "cpu", layout: ShardingSpec | None = None
) -> dict[str, Any]:
    """Load a checkpoint with sharded tensors, without verifying it. Not a collective call.

    Args:
        directory: Directory of the generation.
        map_location: Device of the tensors; "meta" to load their metadata only. Default: "cpu".
        layout: Sharding of the tensors that were sharded when they were written; None for full tensors.

    Raises:
        CheckpointError: If a file does not exist.
        CheckpointDamaged: If a file is corrupted, or contains other objects than data.
    """
    common = load_file(directory / COMMON_FILE, map_location=map_location)
    names = common.pop(NAMES_KEY)
    if map_location == "meta":
        return common
    tensors: dict[str, Tensor] = {}

    def allocate(path: tuple[str, ...], value: Any) -> Any:
        name = names.get(_format_name(path))
        # Tensors with the same name were one object when they were written, and share memory again.
        return value if name is None else tensors.setdefault(name, _allocate(value, map_location, layout))

    checkpoint: dict[str, Any] = tree_map_with_path(common, allocate)
    read_shards(directory, tensors)
    return checkpoint


# -- inside ----------------------------------------------------------------------------------


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


def _wrap_os_errors(directory: Path, write: Callable[[], T]) -> T:
    """Call a function, and raise a CheckpointError with the directory if it raises an OSError."""
    try:
        return write()
    except OSError as error:
        raise CheckpointError(f"{directory} could not be written: {error}.") from error


def _commit(
    temporary: Path,
    final: Path,
    common: dict[str, Any],
    files: dict[str, tuple[int, str]],
    facts: dict[str, Any],
) -> str:
    """Write the common file and the manifest, and rename the generation. Return the hash of the manifest."""
    written = atomic_write(temporary / COMMON_FILE, partial(save_file, common))
    manifest = write_manifest(temporary, {**files, COMMON_FILE: (written.size, written.hash)}, **facts)
    commit_generation(temporary, final)
    return manifest


def _allocate(outline: Tensor, device: Any, layout: ShardingSpec | None) -> Tensor:
    return torch.empty(outline.shape, dtype=outline.dtype, device=device) if layout is None else layout.empty(outline)
