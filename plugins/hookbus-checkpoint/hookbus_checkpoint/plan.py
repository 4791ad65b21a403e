"""What one save will write, and what has to be kept in mind of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hookbus.checkpoints.files import is_of, link, newest_first, read_sidecar, remove
from hookbus.checkpoints.generations import generations_in
from hookbus.checkpoints.sweeping import sweep

__all__ = ["Folder", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One file and its further names.

    Attributes:
        path: the file that is written.
        links: other names that it gets.
        counted: the names that count for retention.
        is_best: whether one of its names says that it is the best.
    """

    path: Path
    links: tuple[Path, ...] = ()
    counted: tuple[str, ...] = ()
    is_best: bool = False


@dataclass(slots=True)
class Folder:
    """The checkpoints that a run has in a directory.

    Attributes:
        path: the directory.
        run: the id of the run; only what it wrote is ever written over or removed.
        periodic: names of the periodic files of this run that may be removed, the oldest first.
        generation: of the newest file.
        record: Called with the path of each committed checkpoint, on the thread that wrote it.
    """

    path: Path
    run: str = ""
    periodic: list[str] = field(default_factory=list)
    generation: int = 0
    record: Callable[[Path], object] = lambda path: None
    _has_looked: bool = False
    _own: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # marks of the best files and the last

    def free(self, name: str) -> str:
        """The name itself, or where a file of others has it, the first one beside it that is free: `last-2.pth`."""
        if self._may_write(name):
            return name
        stem, suffix = os.path.splitext(name)
        beside = (f"{stem}-{number}{suffix}" for number in count(2))
        return next(each for each in beside if self._may_write(each))

    def files_of_others(self) -> list[Path]:
        """The checkpoints here that another run wrote, as their sidecars say."""
        return [path for path in newest_first(self.path) if not is_of(path, self.run)]

    def plan(self, periodic: Sequence[str], best: Sequence[str], last: str | None, pinned: Sequence[str] = ()) -> Plan:
        """Decide which file is written under which names.

        Args:
            periodic: the names of the periodic file; none where none is due.
            best: names of best files that this one becomes.
            last: the name of the last file, None where there is none.
            pinned: those of the periodic names that are kept for ever.
        """
        paths = [self.path / name for name in (*periodic, *best, *([last] if last else []))]
        return Plan(paths[0], tuple(paths[1:]), tuple(name for name in periodic if name not in pinned), bool(best))

    def look(self) -> int:
        """The newest generation that is here, whoever wrote it."""
        if not self._has_looked:
            self._has_looked = True
            self.generation = max(self.generation, self._newest_generation())
        return self.generation

    def begin(self, plan: Plan) -> int:
        """Take the new file into account, as the checkpoint itself shall know it. Returns its generation."""
        self.generation += 1
        self.periodic = [*(name for name in self.periodic if name not in plan.counted), *plan.counted]
        return self.generation

    def finish(self, plan: Plan, keep: int | None) -> None:
        """The file is safely there: give it its other names, and only then remove what is too old.

        Args:
            plan: what was written.
            keep: how many periodic files stay; None for all.
        """
        for path in plan.links:
            link(plan.path, path)
        again = [path for path in (plan.path, *plan.links) if path.name not in plan.counted]
        self._own.update({path.name: _mark_of(path) for path in again})
        while keep is not None and len(self.periodic) > keep:
            if is_of(self.path / self.periodic[0], self.run):
                remove(self.path / self.periodic[0])
            del self.periodic[0]
        sweep(self.path, self.run)

    def is_behind(self, name: str) -> bool:
        """Whether a file may be older than the newest one of this run, or is not there."""
        sidecar = read_sidecar(self.path / name)
        if sidecar is None or sidecar.previous or not (self.path / name).is_file():
            return True
        return sidecar.generation < self.generation

    def load(self, periodic: Sequence[str], generation: int) -> None:
        """Take back what a checkpoint knew, without names that are not here, such as those of another directory."""
        self.periodic = [name for name in periodic if self.path == Path() or (self.path / name).is_file()]
        self.generation = max(self.generation, generation)

    def _may_write(self, name: str) -> bool:
        """Whether there is no such file, or this run wrote it: asked while training waits, so it seldom reads."""
        path = self.path / name
        try:
            mark = _mark_of(path)
        except OSError:
            return True
        return self._own.get(name) == mark or is_of(path, self.run)

    def _newest_generation(self) -> int:
        newest = next(iter(newest_first(self.path)), None)
        sidecar = read_sidecar(newest) if newest is not None else None
        unnamed = (number for number, _ in generations_in(self.path))
        return max([sidecar.generation if sidecar is not None else 0, *unnamed])


def _mark_of(path: Path) -> tuple[int, int, int]:
    """What tells a file from another one that comes into its place."""
    found = os.lstat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns
