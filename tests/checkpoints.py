"""The newest valid checkpoint of a directory, as a run finds it that resumes from any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookbus.checkpoint.state import find_missing_files, iter_checkpoints
from hookbus.errors import CheckpointError


def find_latest_checkpoint(
    directory: Path, *, map_location: Any = "cpu"
) -> tuple[Path, dict[str, Any], list[str]] | None:
    """Load the newest valid checkpoint of a directory.

    Args:
        directory: Directory to search.
        map_location: Device of the tensors; "meta" to load their metadata only. Default: "cpu".

    Returns:
        Path, content, and a message for each file that was skipped; None if the directory contains no checkpoint.

    Raises:
        CheckpointError: If the directory contains checkpoints, but none of them is valid.
    """
    messages: list[str] = []
    for path, checkpoint, reason in iter_checkpoints(directory, map_location=map_location):
        if checkpoint is not None:
            return path, checkpoint, messages + find_missing_files(directory)
        messages.append(reason)
    if messages:
        raise CheckpointError("No checkpoint can be used:\n" + "\n".join(messages))
    return None
