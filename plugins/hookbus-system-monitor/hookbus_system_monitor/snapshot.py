"""Snapshot of the memory usage after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hookbus.checkpoint.atomic_files import write_json

__all__ = ["is_out_of_memory", "save_snapshot"]

OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "out of memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception means that a device or the host is out of memory.

    Args:
        error: Exception that ended the run; None if there is none.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU allocator and drivers raise a plain RuntimeError, which only its message identifies.
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY_MESSAGES)


def save_snapshot(directory: Path, rank: int, contents: Mapping[str, Any]) -> list[Path]:
    """Write `out_of_memory_rank<rank>.json` and, if CUDA is in use, the allocator's blocks as `.pickle`.

    Args:
        directory: Output directory.
        rank: Rank of this process.
        contents: Contents of the JSON file.

    Returns:
        Paths of the files. The pickle can be opened in https://pytorch.org/memory_viz.

    Raises:
        OSError: If a file cannot be written.
    """
    path = directory / f"out_of_memory_rank{rank}.json"
    write_json(path, dict(contents))
    if not torch.cuda.is_initialized():
        return [path]
    blocks = path.with_suffix(".pickle")
    torch.cuda.memory._dump_snapshot(str(blocks))
    return [path, blocks]
