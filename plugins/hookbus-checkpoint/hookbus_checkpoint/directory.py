"""Names, generations and retention of the checkpoints in a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from hookbus import Direction
from hookbus.checkpoint import CheckpointStore
from hookbus_checkpoint.ranking import RankedFile, Ranking
from hookbus_checkpoint.superseded import SupersededFiles


@dataclass(frozen=True, slots=True)
class Plan:
    """Names of one checkpoint.

    Attributes:
        path: Path of the written file.
        links: Paths of its hard links.
        counted: Names that count for retention.
        ranked: Files that enter the ranking of a metric, with the rule of the metric, by full name.
        is_best: Whether one of the names is that of a best checkpoint.
    """

    path: Path
    links: tuple[Path, ...] = ()
    counted: tuple[str, ...] = ()
    ranked: Mapping[str, tuple[RankedFile, Direction]] = field(default_factory=dict)
    is_best: bool = False


def _ignore(path: Path) -> None:
    """Record nothing. Not a lambda, which pickle would refuse."""


@dataclass(slots=True)
class CheckpointDirectory:
    """Checkpoints of a run in a directory.

    Attributes:
        store: Files and generations in the directory, and the run that owns them.
        keep: Maximum number of periodic checkpoints; None to keep all.
        ranking: Checkpoints with the best results of each metric. Default: one of size 1, which contains none.
        superseded: Checkpoints of iterations that the run repeats after a resume from an older one.
        periodic: Names of the periodic checkpoints of this run that may be removed, oldest first.
        generation: Generation of the latest checkpoint.
        record: Function that is called with the path of each committed checkpoint, on the thread that wrote it.
    """

    store: CheckpointStore
    keep: int | None = None
    ranking: Ranking = field(default_factory=lambda: Ranking(1))
    superseded: SupersededFiles = field(default_factory=SupersededFiles)
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

    def plan(
        self,
        periodic: Sequence[str],
        best: Sequence[str],
        last: str | None,
        *,
        pinned: Sequence[str] = (),
        ranked: Mapping[str, tuple[RankedFile, Direction]] | None = None,
    ) -> Plan:
        """Select the names of a checkpoint: the first one is written, the others are hard links.

        Args:
            periodic: Names of the periodic checkpoint, empty if none is due.
            best: Names of the best checkpoints.
            last: Name of the last checkpoint, None for no last checkpoint.
            pinned: Periodic names that are never removed.
            ranked: Files that enter the ranking of a metric, with the rule of the metric, by full name. Default: none.
        """
        ranked = ranked or {}
        in_rankings = [file.name for file, _ in ranked.values()]
        paths = [self.path / name for name in (*periodic, *best, *in_rankings, *([last] if last else []))]
        counted = tuple(name for name in periodic if name not in pinned)
        return Plan(paths[0], tuple(paths[1:]), counted, ranked, bool(best))

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
        self.register(plan, [path.name for path in (plan.path, *plan.links)])
        return self.generation

    def register(self, plan: Plan, names: Collection[str]) -> None:
        """Add those names of a checkpoint that may be removed later.

        Args:
            plan: All names of the checkpoint.
            names: Names under which it is written.
        """
        # A repeated name becomes the newest one.
        counted = [name for name in plan.counted if name in names]
        self.periodic = [*(name for name in self.periodic if name not in counted), *counted]
        for metric, (file, rule) in plan.ranked.items():
            if file.name in names:
                self.ranking.add(metric, file, rule)

    def finish(self, plan: Plan) -> None:
        """Create the links of a committed checkpoint, and remove checkpoints that exceed the retention."""
        # Links first: an interruption in between must not leave fewer checkpoints than before the save.
        for path in plan.links:
            self.store.add_link(plan.path, path)
        once = {*plan.counted, *(file.name for file, _ in plan.ranked.values())}
        reused = [path for path in (plan.path, *plan.links) if path.name not in once]
        self._fingerprints.update({path.name: self._get_fingerprint(path) for path in reused})
        self.remove_excess()

    def remove_excess(self) -> None:
        """Remove the checkpoints that exceed the retention, and the generations that no file refers to.

        Raises:
            OSError: If a checkpoint cannot be removed; it remains in the list, and the next call tries again.
        """
        while self.keep is not None and len(self.periodic) > self.keep:
            self._remove(self.periodic[0])
            del self.periodic[0]
        for metric, file in self.ranking.iter_excess():
            self._remove(file.name)
            self.ranking.discard(metric, file)
        self.superseded.remove(self.store)
        self.store.remove_unreferenced()

    def is_stale(self, name: str) -> bool:
        """Whether a file is missing, or may be older than the latest checkpoint of this run."""
        sidecar = self.store.metadata(self.path / name)
        # `previous` remains in the sidecar if a save was interrupted while it replaced the file.
        if sidecar is None or sidecar.previous or not (self.path / name).is_file():
            return True
        return sidecar.generation < self.generation

    def get_files(self) -> dict[str, Any]:
        """Return the names of the files that may be removed: periodic, in rankings, and superseded."""
        return {
            "periodic": list(self.periodic),
            "ranked": self.ranking.state_dict(),
            "superseded": self.superseded.state_dict(),
        }

    def set_files(self, files: Mapping[str, Any]) -> None:
        """Set the names returned by `get_files`, such as those of another rank or of a checkpoint."""
        self.periodic = list(files["periodic"])
        self.ranking.load_state_dict(files["ranked"])
        self.superseded.load_state_dict(files["superseded"])

    def load(self, files: Mapping[str, Any], generation: int) -> None:
        """Restore the names and the generation of a checkpoint, without periodic ones that do not exist."""
        self.set_files(files)
        # An empty path means that the directory is not known yet.
        self.periodic = [name for name in self.periodic if self.path == Path() or (self.path / name).is_file()]
        self.generation = max(self.generation, generation)

    def remove_missing_ranked(self) -> list[tuple[str, RankedFile]]:
        """Remove files that do not exist in this directory from the rankings, and return them with their metrics."""
        return self.ranking.remove_missing(lambda name: (self.path / name).is_file())

    def _remove(self, name: str) -> None:
        # A foreign file may have replaced the checkpoint.
        if self.store.written_by(self.path / name):
            self.store.remove(self.path / name)

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
