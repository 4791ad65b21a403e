"""One save, from its plan to the committed files: synchronous or on another thread, undone if it fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from hookbus import BestResult, Run
from hookbus.checkpoint import write_checkpoint
from hookbus.distributed import Collectives, has_sharded_tensors
from hookbus.errors import CheckpointError, format_path
from hookbus.metrics import Metrics
from hookbus_checkpoint.plan import CheckpointDirectory, Plan
from hookbus_checkpoint.snapshot import NO_MEMORY, get_memory


@dataclass(slots=True)
class Save:
    """One save.

    Attributes:
        directory: Checkpoints of the directory.
        plan: Names of the checkpoint.
        bests: Best results of this checkpoint, by metric.
        keep: Maximum number of periodic checkpoints; None to keep all.
        metrics: Results at the time of the save.
        generation: Number of the checkpoint, set by `register`.
    """

    directory: CheckpointDirectory
    plan: Plan
    bests: dict[str, BestResult]
    keep: int | None
    metrics: Metrics
    generation: int = 0
    _periodic_before: list[str] = field(default_factory=list)
    _best_before: dict[str, BestResult | None] = field(default_factory=dict)

    def register(self, run: Run) -> None:
        """Register the checkpoint in the run and in the directory, before its content is collected."""
        # The content includes this state: a run that resumes from the checkpoint must know its file names.
        self._periodic_before = list(self.directory.periodic)
        self._best_before = {metric: run.best.get(metric) for metric in self.bests}
        self.generation = self.directory.begin(self.plan)
        run.best.update(self.bests)

    def undo(self, run: Run) -> None:
        """Undo `register`, except for names under which the checkpoint was committed."""
        # A save may fail after its file was committed, while it creates links.
        names = run.ranks.call_on_main("the names of a failed save", self._get_committed_names)
        written = [name for name in self.plan.counted if name in names]
        self.directory.periodic = [*(name for name in self._periodic_before if name not in written), *written]
        for metric, before in self._best_before.items():
            path = self.bests[metric].path
            if path is not None and path.name in names:
                continue
            if before is None:
                run.best.pop(metric, None)
            else:
                run.best[metric] = before

    def write(self, checkpoint: dict[str, Any]) -> None:
        """Write the checkpoint, create its links, and remove checkpoints that exceed the retention.

        Args:
            checkpoint: The content.

        Raises:
            CheckpointError: If the checkpoint could not be written. Existing checkpoints are unchanged.
        """
        try:
            write_checkpoint(self.plan.path, checkpoint, self.generation)
            self.directory.record(self.plan.path)
            self.directory.finish(self.plan, self.keep)
        except OSError as error:
            with suppress(OSError):  # the failed save is reported
                self.directory.store.remove_unreferenced()
            raise CheckpointError(self._format_error(error, checkpoint)) from error

    def write_collective(self, checkpoint: dict[str, Any], ranks: Collectives) -> None:
        """Write the checkpoint collectively: each rank writes its shards, and rank 0 writes everything else.

        Args:
            checkpoint: The content.
            ranks: Collectives of the writing threads.

        Raises:
            CheckpointError: If any rank could not write its part.
        """
        if has_sharded_tensors(checkpoint):
            # Before rank 0 commits the main file, which refers to the shards.
            checkpoint = self.directory.store.write_sharded(checkpoint, self.generation, ranks)
        ranks.call_on_main(f"the checkpoint {self.plan.path}", partial(self.write, checkpoint))
        self.sync_file_list(ranks)

    def sync_file_list(self, ranks: Collectives) -> None:
        """Broadcast the names of the periodic checkpoints, which only rank 0 changes during a write."""
        self.directory.periodic = ranks.broadcast("the periodic files", self.directory.periodic)

    def _get_committed_names(self) -> list[str]:
        return [path.name for path in (self.plan.path, *self.plan.links) if self._is_committed(path)]

    def _is_committed(self, path: Path) -> bool:
        try:
            return self.directory.store.verify(path).generation == self.generation
        except CheckpointError:
            return False

    def _format_error(self, error: OSError, checkpoint: dict[str, Any]) -> str:
        required = sum(tensor.untyped_storage().nbytes() for tensor in iter_tensors(checkpoint))
        # The directory itself may be what could not be created.
        parents = (self.directory.path, *self.directory.path.absolute().parents)
        existing = next(path for path in parents if path.is_dir())
        return (
            f"{format_path(self.plan.path)} could not be written: {error}. About {required:,} bytes are required, and "
            f"{shutil.disk_usage(existing).free:,} are available. Existing files are unchanged."
        )


def iter_tensors(value: Any) -> Iterator[Tensor]:
    """Yield one tensor per storage in a nested checkpoint; tensors without a storage are omitted."""
    seen = {NO_MEMORY}
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            if get_memory(item) not in seen:
                seen.add(get_memory(item))
                yield item
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, (list, tuple, set)):
            stack += item
