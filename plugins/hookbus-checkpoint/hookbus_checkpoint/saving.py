"""Names, generations and retention of the checkpoints in a directory, and saves, which are undone if they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from hookbus import BestResult, Run
from hookbus.checkpoint import CheckpointStore, write_checkpoint
from hookbus.distributed import Collectives, has_sharded_tensors
from hookbus.errors import CheckpointError, format_path
from hookbus_checkpoint.snapshot import NO_MEMORY, get_memory, iter_tensors


@dataclass(frozen=True, slots=True)
class Plan:
    """Names of one checkpoint.

    Attributes:
        path: Path of the written file.
        links: Paths of its hard links.
        counted: Names that count for retention.
        is_best: Whether one of the names is that of a best checkpoint.
    """

    path: Path
    links: tuple[Path, ...] = ()
    counted: tuple[str, ...] = ()
    is_best: bool = False


def _ignore(path: Path) -> None:
    """Record nothing. Not a lambda, which pickle would refuse."""


@dataclass(slots=True)
class CheckpointDirectory:
    """Checkpoints of a run in a directory.

    Attributes:
        store: Files and generations in the directory, and the run that owns them.
        keep: Maximum number of periodic checkpoints; None to keep all.
        periodic: Names of the periodic checkpoints of this run that may be removed, oldest first.
        generation: Generation of the latest checkpoint.
        record: Function that is called with the path of each committed checkpoint, on the thread that wrote it.
    """

    store: CheckpointStore
    keep: int | None = None
    periodic: list[str] = field(default_factory=list)
    generation: int = 0
    record: Callable[[Path], object] = _ignore
    _is_scanned: bool = False
    # Fingerprints of the best and last files, so that their sidecars are not read while the training is blocked.
    _fingerprints: dict[str, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The directory."""
        return self.store.directory

    def available_name(self, name: str) -> str:
        """Return the name, or the first available variant such as `last-2.pth` if a foreign file has the name."""
        if self._is_available(name):
            return name
        stem, suffix = os.path.splitext(name)
        variants = (f"{stem}-{number}{suffix}" for number in count(2))
        return next(variant for variant in variants if self._is_available(variant))

    def foreign_checkpoints(self) -> list[Path]:
        """Return the checkpoints whose sidecars contain the id of another run."""
        store = self.store
        sidecars = ((path, store.metadata(path)) for path in store.newest())
        others = [(path, sidecar.run) for path, sidecar in sidecars if sidecar is not None and sidecar.run != store.run]
        # A user file may have replaced the checkpoint of a run that was overwritten.
        return [path for path, run in others if store.written_by(path, run)]

    def plan(self, periodic: Sequence[str], best: Sequence[str], last: str | None, pinned: Sequence[str] = ()) -> Plan:
        """Select the names of a checkpoint: the first one is written, the others are hard links.

        Args:
            periodic: Names of the periodic checkpoint, empty if none is due.
            best: Names of the best checkpoints.
            last: Name of the last checkpoint, None for no last checkpoint.
            pinned: Periodic names that are never removed.
        """
        paths = [self.path / name for name in (*periodic, *best, *([last] if last else []))]
        return Plan(paths[0], tuple(paths[1:]), tuple(name for name in periodic if name not in pinned), bool(best))

    def scan(self) -> int:
        """Return the latest generation in the directory, including those of other runs."""
        # Once per run: scanning the directory reads the sidecars of all checkpoints.
        if not self._is_scanned:
            self._is_scanned = True
            self.generation = max(self.generation, self._get_newest_generation())
        # A foreign file may have the name of a generation.
        while os.path.lexists(self.store.generation_path(self.generation + 1)):
            self.generation += 1
        return self.generation

    def begin(self, plan: Plan) -> int:
        """Register a new checkpoint before its content is collected, and return its generation."""
        self.generation += 1
        # A repeated name becomes the newest one.
        self.periodic = [*(name for name in self.periodic if name not in plan.counted), *plan.counted]
        return self.generation

    def finish(self, plan: Plan) -> None:
        """Create the links of a committed checkpoint, and remove checkpoints that exceed the retention."""
        # Links first: an interruption in between must not leave fewer checkpoints than before the save.
        for path in plan.links:
            self.store.add_link(plan.path, path)
        reused = [path for path in (plan.path, *plan.links) if path.name not in plan.counted]
        self._fingerprints.update({path.name: self._get_fingerprint(path) for path in reused})
        self.remove_excess()

    def remove_excess(self) -> None:
        """Remove the checkpoints that exceed the retention, and the generations that no file refers to.

        Raises:
            OSError: If a checkpoint cannot be removed; it remains in the list, and the next call tries again.
        """
        while self.keep is not None and len(self.periodic) > self.keep:
            # A foreign file may have replaced the checkpoint.
            if self.store.written_by(self.path / self.periodic[0]):
                self.store.remove(self.path / self.periodic[0])
            del self.periodic[0]
        self.store.remove_unreferenced()

    def is_stale(self, name: str) -> bool:
        """Whether a file is missing, or may be older than the latest checkpoint of this run."""
        sidecar = self.store.metadata(self.path / name)
        # `previous` remains in the sidecar if a save was interrupted while it replaced the file.
        if sidecar is None or sidecar.previous or not (self.path / name).is_file():
            return True
        return sidecar.generation < self.generation

    def load(self, periodic: Sequence[str], generation: int) -> None:
        """Restore the names and the generation of a checkpoint, without names that do not exist in this directory."""
        # An empty path means that the directory is not known yet.
        self.periodic = [name for name in periodic if self.path == Path() or (self.path / name).is_file()]
        self.generation = max(self.generation, generation)

    def _is_available(self, name: str) -> bool:
        """Whether a name and that of its sidecar are available: no file has them, or files of this run."""
        path, fingerprint = self.path / name, self._fingerprints.get(name)
        if fingerprint is not None and fingerprint == self._get_fingerprint(path):
            return True
        try:
            return self.store.is_available(path)
        except OSError:  # checked again, and reported, when the file is written
            return True

    def _get_newest_generation(self) -> int:
        newest = next(iter(self.store.newest()), None)
        sidecar = self.store.metadata(newest) if newest is not None else None
        return max([sidecar.generation if sidecar is not None else 0, *self.store.generations()])

    def _get_fingerprint(self, path: Path) -> tuple[tuple[int, int, int], ...]:
        """Return a fingerprint of a file and its sidecar that changes if one is modified; () without both."""
        try:
            # `lstat`, because a symbolic link is a foreign file.
            entries = [os.lstat(path), os.lstat(self.store.sidecar_path(path))]
        except OSError:
            return ()
        return tuple((entry.st_ino, entry.st_size, entry.st_mtime_ns) for entry in entries)


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
        self._periodic_before = list(directory.periodic)
        self._best_before = {metric: run.best.get(metric) for metric in bests}
        self._generation = directory.begin(plan)
        run.best.update(bests)

    def undo(self, run: Run) -> None:
        """Undo the registration, except for names under which the checkpoint was committed."""
        # A save may fail after its file was committed, while it creates links.
        names = run.ranks.call_on_main("the names of a failed save", self._get_committed_names)
        written = [name for name in self.plan.counted if name in names]
        self._directory.periodic = [*(name for name in self._periodic_before if name not in written), *written]
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
        """Broadcast the names of the periodic checkpoints, which only rank 0 changes during a write."""
        self._directory.periodic = ranks.broadcast("the periodic files", self._directory.periodic)

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
