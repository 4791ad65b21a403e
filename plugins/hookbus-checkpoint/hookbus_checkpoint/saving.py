"""One save, from its plan to its end: written here or on another thread, and undone where it fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from hookbus.checkpoints.files import verify
from hookbus.checkpoints.sweeping import sweep
from hookbus.errors import CheckpointError
from hookbus.metrics import Metrics
from hookbus.model.layouts import has_spread
from hookbus.ranks import Ranks
from hookbus.run import Best, Run
from hookbus.state import write_checkpoint
from hookbus_checkpoint.plan import Folder, Plan
from hookbus_checkpoint.snapshot import NOWHERE, memory_of

__all__ = ["Save", "tensors_in"]


@dataclass(slots=True)
class Save:
    """One save.

    Attributes:
        folder: where it goes.
        plan: under which names.
        bests: what it makes the best, by metric.
        keep: how many periodic files stay; None for all.
        metrics: the results at that moment.
        generation: its number, once it was taken into account.
    """

    folder: Folder
    plan: Plan
    bests: dict[str, Best]
    keep: int | None
    metrics: Metrics
    generation: int = 0
    _periodic_before: list[str] = field(default_factory=list)
    _best_before: dict[str, Best | None] = field(default_factory=dict)

    def take_into_account(self, run: Run) -> None:
        """Let the run and the folder know of the new file, as the checkpoint itself shall know it."""
        self._periodic_before = list(self.folder.periodic)
        self._best_before = {metric: run.best.get(metric) for metric in self.bests}
        self.generation = self.folder.begin(self.plan)
        run.best.update(self.bests)

    def undo(self, run: Run) -> None:
        """Forget it, except for the names under which it is there nevertheless."""
        names = run.ranks.by_main("the names of a save that failed", self._names_there)
        written = [name for name in self.plan.counted if name in names]
        self.folder.periodic = [*(name for name in self._periodic_before if name not in written), *written]
        for metric, before in self._best_before.items():
            path = self.bests[metric].path
            if path is not None and path.name in names:
                continue
            if before is None:
                run.best.pop(metric, None)
            else:
                run.best[metric] = before

    def write(self, checkpoint: dict[str, Any]) -> None:
        """Write the file, give it its names, and remove what is too old.

        Raises:
            CheckpointError: it could not be written; older files are untouched.
        """
        try:
            write_checkpoint(self.plan.path, checkpoint, self.generation)
            self.folder.record(self.plan.path)
            self.folder.finish(self.plan, self.keep)
        except OSError as error:
            sweep(self.folder.path, self.folder.run)
            raise CheckpointError(self._what_failed(error, checkpoint)) from error

    def write_together(self, checkpoint: dict[str, Any], ranks: Ranks) -> None:
        """The same on every process: weights that are spread over them are written by all, the rest by the main one.

        Raises:
            CheckpointError: it could not be written, on whichever process.
        """
        if has_spread(checkpoint):
            from hookbus.checkpoints.sharded import write_generation  # takes long to import

            checkpoint = write_generation(self.folder.path, checkpoint, self.generation, ranks)
        ranks.by_main(f"the checkpoint {self.plan.path}", partial(self.write, checkpoint))
        self.agree_on_files(ranks)

    def agree_on_files(self, ranks: Ranks) -> None:
        """Let every process know which periodic files there are now."""
        self.folder.periodic = ranks.broadcast("the periodic files", self.folder.periodic)

    def _names_there(self) -> list[str]:
        return [path.name for path in (self.plan.path, *self.plan.links) if self._is_at(path)]

    def _is_at(self, path: Path) -> bool:
        try:
            return verify(path).generation == self.generation
        except CheckpointError:
            return False

    def _what_failed(self, error: OSError, checkpoint: dict[str, Any]) -> str:
        needed = sum(tensor.untyped_storage().nbytes() for tensor in tensors_in(checkpoint))
        there = next(each for each in (self.folder.path, *self.folder.path.absolute().parents) if each.is_dir())
        return (
            f"{self.plan.path} could not be written: {error}. It needs about {needed:,} bytes, and "
            f"{shutil.disk_usage(there).free:,} are free. Older files are untouched."
        )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a checkpoint that are views of memory; of those that share it, one."""
    seen = {NOWHERE}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            if memory_of(each) not in seen:
                seen.add(memory_of(each))
                yield each
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, (list, tuple, set)):
            waiting += each
