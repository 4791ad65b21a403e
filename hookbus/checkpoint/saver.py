"""Protocol of the hook that writes checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from hookbus._run.requests import Request
    from hookbus._run.run import Run

__all__ = ["CheckpointSaver"]


class CheckpointSaver(Protocol):
    """Protocol of objects that write checkpoints, such as the checkpoint hook."""

    def plan(self, run: Run, requests: list[Request]) -> Path | None:
        """Determine the file of one checkpoint for all requests, before the checkpoint is collected.

        The checkpoint contains the state of the saver (files, best values), which must be up to date after this call.

        Args:
            run: Run to save.
            requests: Pending save requests for this saver.

        Returns:
            Path of the checkpoint; None if nothing has to be written.
        """

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool | None:
        """Write the planned checkpoint.

        Returns:
            Whether the checkpoint is the best one; None if it could not be written.
        """
