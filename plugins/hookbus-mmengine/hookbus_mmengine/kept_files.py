"""Checkpoints that `CheckpointHook` removes before it saves the next one, which a hook of the run may refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class KeptFiles:
    """File backend of a `CheckpointHook` that removes earlier checkpoints after the next one is saved.

    Args:
        backend: The file backend.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._earlier: list[tuple[str, str]] = []  # method and path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        """Remove a file after the next save."""
        self._earlier.append(("remove", path))

    def rmtree(self, path: str) -> None:
        """Remove a directory after the next save."""
        self._earlier.append(("rmtree", path))

    def remove_earlier(self, saved: str) -> None:
        """Remove the earlier checkpoints.

        Args:
            saved: Checkpoint that has been saved, perhaps under the name of an earlier one.
        """
        earlier, self._earlier = self._earlier, []
        for method, path in earlier:
            if Path(path) != Path(saved):
                getattr(self._backend, method)(path)
