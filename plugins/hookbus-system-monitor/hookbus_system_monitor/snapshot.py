"""Snapshot of the memory usage after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hookbus.checkpoint import write_json
from hookbus.writers import OutputFiles

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


def save_snapshot(output: OutputFiles, rank: int, contents: Mapping[str, Any]) -> list[Path]:
    """Write `out_of_memory_rank<rank>.json` and, if CUDA is in use, the allocator's blocks as `.pickle`.

    Args:
        output: Files of the output directory.
        rank: Rank of this process.
        contents: Contents of the JSON file.

    Returns:
        Paths of the files. The pickle can be opened in https://pytorch.org/memory_viz.

    Raises:
        OSError: If a file cannot be written.
    """
    name = f"out_of_memory_rank{rank}"
    paths = [output.create(f"{name}.json", lambda path: write_json(path, dict(contents)))]
    if torch.cuda.is_initialized():
        paths.append(output.create(f"{name}.pickle", lambda path: torch.cuda.memory._dump_snapshot(str(path))))
    return paths
