"""What is left of an out-of-memory error: files from which to see what filled the memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hookbus.checkpoints.files import write_json

__all__ = ["is_out_of_memory", "save_snapshot"]

MESSAGES = ("can't allocate memory", "out of memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a device or the host had no memory left.

    Args:
        error: what ended the run. On the CPU, and where a driver has no memory for its own work, torch raises a
            RuntimeError, which only its message tells from others.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in MESSAGES)


def save_snapshot(directory: Path, rank: int, facts: Mapping[str, Any]) -> list[Path]:
    """Write `out_of_memory_rank<rank>.json`, and where CUDA is in use the allocator's blocks as `.pickle`.

    Args:
        directory: where to.
        rank: the number of this process.
        facts: what is known; goes into the JSON file.

    Returns:
        The files. The pickle is for https://pytorch.org/memory_viz.

    Raises:
        OSError: a file cannot be written.
    """
    path = directory / f"out_of_memory_rank{rank}.json"
    write_json(path, dict(facts))
    if not torch.cuda.is_initialized():
        return [path]
    blocks = path.with_suffix(".pickle")
    torch.cuda.memory._dump_snapshot(str(blocks))
    return [path, blocks]
