"""Saves of checkpoints, which are undone if they fail."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from typing import Any

from hookbus import BestResult, Run
from hookbus.checkpoint import write_checkpoint
from hookbus.distributed import Collectives, has_sharded_tensors
from hookbus.errors import CheckpointError, format_path
from hookbus_checkpoint.directory import CheckpointDirectory, Plan
from hookbus_checkpoint.snapshot import NO_MEMORY, get_memory, iter_tensors


class Save:
    """One save, which is registered in the run and in the directory before its content is collected.

    Args:
        run: The run.
        directory: Checkpoints of the directory.
        plan: Names of the checkpoint.
        bests: Best results of this checkpoint, by metric.

    Attributes:
        plan: Argument of the same name.
        metrics: Results at the time of the save.
    """

    def __init__(self, run: Run, directory: CheckpointDirectory, plan: Plan, bests: dict[str, BestResult]) -> None:
        self.plan, self.metrics = plan, run.metrics.results
        self._directory, self._bests = directory, bests
        # The content includes this state: a run that resumes from the checkpoint must know its file names.
        self._files_before = directory.get_files()
        self._best_before = {metric: run.best.get(metric) for metric in bests}
        self._generation = directory.begin(plan)
        directory.superseded.iterations = run.iters_done
        run.best.update(bests)

    def undo(self, run: Run) -> None:
        """Undo the registration, except for names under which the checkpoint was committed."""
        # A save may fail after its file was committed, while it creates links.
        names = run.ranks.call_on_main("the names of a failed save", self._get_committed_names)
        self._directory.set_files(self._files_before)
        self._directory.register(self.plan, names)
        for metric, before in self._best_before.items():
            path = self._bests[metric].path
            if path is not None and path.name in names:
                continue
            if before is None:
                run.best.pop(metric, None)
            else:
                run.best[metric] = before

    def write(self, checkpoint: dict[str, Any]) -> None:
        """Write the checkpoint, create its links, and remove checkpoints that exceed the retention.

        Raises:
            CheckpointError: If the checkpoint could not be written. Existing checkpoints are unchanged.
        """
        try:
            write_checkpoint(self.plan.path, checkpoint, self._generation)
            self._directory.record(self.plan.path)
            self._directory.finish(self.plan)
        except OSError as error:
            with suppress(OSError):  # the failed save is reported
                self._directory.store.remove_unreferenced()
            raise CheckpointError(self._format_error(error, checkpoint)) from error

    def write_collective(self, checkpoint: dict[str, Any], ranks: Collectives) -> None:
        """Write the checkpoint collectively: each rank writes its shards, and rank 0 writes everything else.

        Raises:
            CheckpointError: If any rank could not write its part.
        """
        if has_sharded_tensors(checkpoint):
            # Before rank 0 commits the main file, which refers to the shards.
            checkpoint = self._directory.store.write_sharded(checkpoint, self._generation, ranks)
        ranks.call_on_main(f"the checkpoint {self.plan.path}", partial(self.write, checkpoint))
        self.sync_file_list(ranks)

    def sync_file_list(self, ranks: Collectives) -> None:
        """Broadcast the names of the files that may be removed, which only rank 0 changes during a write."""
        self._directory.set_files(ranks.broadcast("the files", self._directory.get_files()))

    def _get_committed_names(self) -> set[str]:
        names = set()
        for path in (self.plan.path, *self.plan.links):
            with suppress(CheckpointError):
                if self._directory.store.verify(path).generation == self._generation:
                    names.add(path.name)
        return names

    def _format_error(self, error: OSError, checkpoint: dict[str, Any]) -> str:
        # The directory itself may be what could not be created.
        parents = (self._directory.path, *self._directory.path.absolute().parents)
        existing = next(path for path in parents if path.is_dir())
        return (
            f"{format_path(self.plan.path)} could not be written: {error}. About {count_bytes(checkpoint):,} bytes are "
            f"required, and {shutil.disk_usage(existing).free:,} are available. Existing files are unchanged."
        )


def count_bytes(checkpoint: Any) -> int:
    """Return the size of the tensors of a checkpoint; memory that several of them share counts once."""
    by_memory = {get_memory(tensor): tensor for tensor in iter_tensors(checkpoint)}
    return sum(tensor.untyped_storage().nbytes() for memory, tensor in by_memory.items() if memory != NO_MEMORY)
