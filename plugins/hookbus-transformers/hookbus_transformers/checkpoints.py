"""File with the state of the hooks in the checkpoints of the Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus.checkpoint import flatten_weights, read_checkpoint, write_checkpoint

FILE = "hookbus.pth"
"""Name of the file in `checkpoint-N`."""


def write_state(directory: str | Path, state: Mapping[str, Any]) -> None:
    """Write the state of the hooks and the loop into a checkpoint.

    Raises:
        OSError: If the file cannot be written.
    """
    path = Path(directory) / FILE
    # The Trainer overwrites a checkpoint of an earlier training, whose file another run has written.
    for stale in (path, path.with_name(f"{FILE}.json")):
        stale.unlink(missing_ok=True)
    write_checkpoint(path, state, generation=state["meta"]["step"])


def read_state(directory: str | Path) -> dict[str, Any]:
    """Return the state in a checkpoint; {} if it was saved without hooks.

    Raises:
        CheckpointError: If the file is corrupted, or cannot be read.
    """
    path = Path(directory) / FILE
    return read_checkpoint(path) if path.exists() else {}


def load_averages(model: Any, directory: str | Path) -> bool:
    """Load the averaged weights of a checkpoint into a model.

    Returns:
        Whether the checkpoint contains averaged weights.

    Raises:
        CheckpointError: If the file is corrupted.
    """
    averages = flatten_weights(read_state(directory).get("ema_state_dict", {}))
    # They may cover a part of the model only.
    model.load_state_dict(averages, strict=False)
    return bool(averages)
