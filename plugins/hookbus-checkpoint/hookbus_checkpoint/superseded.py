"""Checkpoints of iterations that a run repeats, after it was resumed from an older checkpoint."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hookbus.checkpoint import CheckpointStore
from hookbus.errors import CheckpointCorruptedError, CheckpointError


@dataclass(slots=True)
class SupersededFiles:
    """Checkpoints of this run beyond the one from which it was resumed.

    A name may contain a metric, so that the repeated iterations result in other names. A superseded file is removed
    when the run has saved a checkpoint of the same or a later iteration.

    Attributes:
        files: Number of iterations and generation of each file, by name.
        iterations: Number of iterations of the latest checkpoint.
    """

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    iterations: int = 0

    def find(self, store: CheckpointStore, generation: int, fixed: Collection[str]) -> None:
        """Find the superseded files in a directory.

        Args:
            store: The directory.
            generation: Generation of the checkpoint from which the run was resumed.
            fixed: Names that later checkpoints replace, such as that of the last one.
        """
        for path in store.newest():
            sidecar = store.metadata(path)
            # Older files belong to the progress of the run, or are known since an earlier resume.
            if sidecar is None or sidecar.run != store.run or sidecar.generation <= generation:
                continue
            # `last-2.pth` replaces a foreign `last.pth`.
            if re.sub(r"-\d+(?=\.pth$)", "", path.name) not in fixed and not path.name.startswith("."):
                try:
                    iterations = store.load_on_meta(path)["loop"]["clock"]["iters_done"]
                except CheckpointCorruptedError:  # the resume has reported it, and continued from an older one
                    iterations = self.iterations + 1
                except (CheckpointError, LookupError, TypeError):
                    continue
                if iterations > self.iterations:
                    self.files[path.name] = iterations, sidecar.generation

    def remove(self, store: CheckpointStore) -> None:
        """Remove the files of iterations that the latest checkpoint contains, unless their names were used again.

        Raises:
            OSError: If a file cannot be removed; the next call tries again.
        """
        due = [name for name, (iterations, _) in self.files.items() if iterations <= self.iterations]
        for name in due:
            path = store.directory / name
            sidecar = store.metadata(path)
            is_unchanged = sidecar is not None and sidecar.generation == self.files[name][1]
            if is_unchanged and store.written_by(path):
                store.remove(path)
            del self.files[name]

    def state_dict(self) -> dict[str, Any]:
        """Return number of iterations and generation by name."""
        return {name: list(numbers) for name, numbers in self.files.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.files = {name: (numbers[0], numbers[1]) for name, numbers in state.items()}
