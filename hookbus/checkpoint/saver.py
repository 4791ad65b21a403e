"""Protocol of the hook that writes checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hookbus._run.requests import Request
    from hookbus._run.run import Run


@runtime_checkable
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

        Args:
            run: Run to save.
            checkpoint: Complete checkpoint, see `write_checkpoint`. The saver may modify it.

        Returns:
            Whether the checkpoint is the best one; None if it could not be written.
        """


@runtime_checkable
class BestSaver(CheckpointSaver, Protocol):
    """Protocol of savers that keep best checkpoints, which contain the weights that achieved the scores.

    These are not the weights of training if a hook exchanges the weights for validations.
    """

    def improves(self, run: Run, metrics: Mapping[str, float]) -> bool:
        """Return whether the results of a validation would be the best ones, without an effect on the saver.

        Args:
            run: The run, in a validation.
            metrics: Results so far by full name, equal on all ranks.
        """


@runtime_checkable
class StopSaver(CheckpointSaver, Protocol):
    """Protocol of savers that save when a run ends within an epoch.

    The state is saved at the boundary at which the run ends, before the loop executes the rest of the epoch: a resumed
    run executes it.
    """

    def request_last(self, run: Run) -> None:
        """Request the last checkpoint of the run, unless the latest one is up to date or the saver keeps no last one.

        Args:
            run: Run that ends at this boundary.
        """

    def wait_for_pending(self, run: Run) -> None:
        """Block until no save is in progress on another thread.

        Args:
            run: The run.
        """
