"""Checkpoints of tensors that are spread over several processes (FSDP2): written by all of them, read by any number.

Every process writes its part of the spread tensors, through `torch.distributed.checkpoint`, into one directory; see
`hookbus.checkpoints.generations` for how that becomes visible at once, whole and verified. They are read back as they
are spread in the run that reads, over as many processes as that has, or as whole tensors. As in every checkpoint
there is no code in it: what torch would unpickle goes through a list of what may be there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from hookbus.checkpoints.files import commit, temporary_name
from hookbus.checkpoints.generations import (
    COMMON,
    POINTER,
    directory_of,
    publish,
    seal,
)
from hookbus.checkpoints.reading import content_of, put_content
from hookbus.checkpoints.shards import read_shards, write_shards
from hookbus.errors import CheckpointError
from hookbus.model.layouts import changed, is_spread

T = TypeVar("T")

if TYPE_CHECKING:
    from hookbus.model.layouts import Layout
    from hookbus.ranks import Ranks

__all__ = ["read_generation", "write_generation"]

PLACES = "places"
"""The key in the common part: which spread tensor belongs where."""


def write_generation(folder: Path, checkpoint: dict[str, Any], generation: int, ranks: Ranks) -> dict[str, Any]:
    """Write a checkpoint with spread tensors. Called on every process, and fails on all of them or on none.

    Args:
        folder: where the directory of the generation goes.
        checkpoint: what this process has of the checkpoint. Of what is not spread, that of the main process counts.
        generation: its number; there is no directory of it yet.
        ranks: the processes; on another thread, those of a gateway of its own.

    Returns:
        What a file holds that names this generation.

    Raises:
        CheckpointError: it could not be written. Nothing is left of it, and nothing else has changed.
    """
    common, tensors = _parted(checkpoint)
    final, run = folder / directory_of(generation), checkpoint["loop"]["id"]
    temporary = folder / ranks.broadcast("the name of a generation", temporary_name(run))
    try:
        write = partial(write_shards, temporary, tensors, ranks.rank, ranks.group)
        parts = ranks.everywhere("the tensors of a generation", partial(_in_words, final, write))
        files = {name: each for part in parts for name, each in part.items()}
        facts = {"generation": generation, "run": run, "processes": ranks.world_size, "torch": str(torch.__version__)}
        finish = partial(_finish, temporary, final, common, files, facts)
        manifest = ranks.by_main("a generation", partial(_in_words, final, finish))
    finally:
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
    pointer = {"directory": final.name, "manifest": manifest}
    return {"meta": checkpoint["meta"], "loop": {"id": run}, POINTER: pointer}


def read_generation(directory: Path, *, map_location: Any = "cpu", layout: Layout | None = None) -> dict[str, Any]:
    """Read a checkpoint with spread tensors. It is not compared with its manifest. Nothing is sent between processes.

    Args:
        directory: the generation.
        map_location: where tensors go; "meta" for an outline.
        layout: how tensors are spread that were spread when they were written; None for whole ones.

    Raises:
        CheckpointError: there is no such file.
        CheckpointDamaged: it is not what was written, or holds more than data.
    """
    common = content_of(directory / COMMON, map_location=map_location)
    places = common.pop(PLACES)
    if map_location == "meta":
        return common
    tensors: dict[str, Tensor] = {}

    def place(path: tuple[str, ...], value: Any) -> Any:
        key = places.get(_name(path))
        return value if key is None else tensors.setdefault(key, _room_for(value, map_location, layout))

    checkpoint: dict[str, Any] = changed(common, place)
    read_shards(directory, tensors)
    return checkpoint


# -- inside ----------------------------------------------------------------------------------


def _parted(checkpoint: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The checkpoint with outlines in the place of spread tensors, and these by name; one in two places has one."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    places: dict[str, str] = {}

    def outline(path: tuple[str, ...], value: Any) -> Any:
        if not is_spread(value):
            return value
        place = _name(path)
        name = places[place] = names.setdefault(id(value), place)
        tensors[name] = value.detach()
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    return {**changed(checkpoint, outline), PLACES: places}, tensors


def _name(path: tuple[str, ...]) -> str:
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in path)


def _in_words(directory: Path, write: Callable[[], T]) -> T:
    """Write, and say in our own words what could not be."""
    try:
        return write()
    except OSError as error:
        raise CheckpointError(f"{directory} could not be written: {error}.") from error


def _finish(
    temporary: Path,
    final: Path,
    common: dict[str, Any],
    files: dict[str, tuple[int, str]],
    facts: dict[str, Any],
) -> str:
    """Write what the processes have in common, and let the generation be seen. Returns the hash of the manifest."""
    written = commit(temporary / COMMON, partial(put_content, common))
    manifest = seal(temporary, {**files, COMMON: (written.size, written.hash)}, **facts)
    publish(temporary, final)
    return manifest


def _room_for(outline: Tensor, device: Any, layout: Layout | None) -> Tensor:
    return torch.empty(outline.shape, dtype=outline.dtype, device=device) if layout is None else layout.empty(outline)
