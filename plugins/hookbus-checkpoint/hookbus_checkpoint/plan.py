"""What one save will write, and what has to be kept in mind of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hookbus.files import link, newest_first, read_sidecar, remove

__all__ = ["Folder", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One file and its further names.

    Attributes:
        path: the file that is written.
        links: other names that it gets.
        is_periodic: whether it counts for retention.
        is_best: whether one of its names says that it is the best.
    """

    path: Path
    links: tuple[Path, ...] = ()
    is_periodic: bool = False
    is_best: bool = False


@dataclass(slots=True)
class Folder:
    """The checkpoints that a run has in a directory.

    Attributes:
        path: the directory.
        periodic: names of the periodic files of this run, the oldest first.
        generation: of the newest file.
    """

    path: Path
    periodic: list[str] = field(default_factory=list)
    generation: int = 0

    def plan(self, periodic: str | None, best: list[str], last: str | None) -> Plan:
        """Decide which file is written under which names.

        Args:
            periodic: the name of the periodic file, None where none is due.
            best: names of best files that this one becomes.
            last: the name of the last file, None where there is none.
        """
        names = [name for name in (periodic, *best, last) if name is not None]
        paths = [self.path / name for name in names]
        return Plan(paths[0], tuple(paths[1:]), periodic is not None, bool(best))

    def begin(self, plan: Plan) -> None:
        """Take the new file into account, as the checkpoint itself shall know it."""
        self.generation = max(self.generation, self._newest_generation()) + 1
        if plan.is_periodic:
            self.periodic = [*(name for name in self.periodic if name != plan.path.name), plan.path.name]

    def finish(self, plan: Plan, keep: int | None) -> None:
        """The file is safely there: give it its other names, and only then remove what is too old.

        Args:
            plan: what was written.
            keep: how many periodic files stay; None for all.
        """
        for name in plan.links:
            link(plan.path, name)
        while keep is not None and len(self.periodic) > keep:
            remove(self.path / self.periodic[0])
            del self.periodic[0]

    def forget_missing(self) -> None:
        """Drop names that are not in this directory, such as those of the run that was resumed from elsewhere."""
        self.periodic = [name for name in self.periodic if (self.path / name).is_file()]

    def _newest_generation(self) -> int:
        newest = next(iter(newest_first(self.path)), None)
        sidecar = read_sidecar(newest) if newest is not None else None
        return sidecar.generation if sidecar is not None else 0
