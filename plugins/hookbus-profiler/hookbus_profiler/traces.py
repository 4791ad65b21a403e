"""The files of traces and operators, whose size has an end.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.profiler import profile

__all__ = ["Traces", "operators"]

ROWS = 20


class Traces:
    """Writes one trace and one table of operators per cycle, until there is no more room.

    Args:
        directory: where to.
        owner: the beginning of the names of all files; those that lie there already take room as well.
        suffix: the end of the names of traces; None for no traces, tables alone.
        most: bytes that all files together may take.
    """

    def __init__(self, directory: Path, owner: str, suffix: str | None, most: float) -> None:
        self._directory, self._owner, self._suffix, self._most = directory, owner, suffix, most
        self._is_full = False

    def write(self, finished: profile, name: str) -> str | None:
        """Write what a cycle has recorded. A file is there as a whole or not at all.

        Args:
            finished: the torch profiler, switched off.
            name: goes into the names of the files.

        Returns:
            A sentence about the first file for which there is no room; from then on nothing is written.

        Raises:
            OSError: something could not be written.
        """
        if self._is_full:
            return None
        self._directory.mkdir(parents=True, exist_ok=True)
        said = self._put(f"{name}.operators.txt", lambda path: path.write_text(operators(finished)))
        if said is None and self._suffix is not None:
            said = self._put(f"{name}{self._suffix}", lambda path: finished.export_chrome_trace(str(path)))
        return said

    def _put(self, name: str, write: Callable[[Path], object]) -> str | None:
        path = self._directory / f"{self._owner}-{name}"
        hidden = path.with_name(f".tmp-{path.name}")
        try:
            write(hidden)
            size = hidden.stat().st_size
            self._is_full = self._taken(but=path) + size > self._most
            if self._is_full:
                return (
                    f"{path.name} is left out, and what follows as well: with its {size / 1e6:.3g} MB the files would "
                    f"take more than the {self._most / 1e6:.3g} MB that they may. Trace fewer iterations "
                    "(schedule.active), or raise max_megabytes."
                )
            hidden.replace(path)
        finally:
            hidden.unlink(missing_ok=True)
        return None

    def _taken(self, *, but: Path) -> int:
        """Bytes of the files that are there; one will be replaced."""
        return sum(each.stat().st_size for each in self._directory.glob(f"{self._owner}-*") if each != but)


def operators(finished: profile) -> str:
    """The operators that took most time by themselves, as a table."""
    averages = finished.key_averages()
    on_device = any(each.self_device_time_total for each in averages)
    by = "self_device_time_total" if on_device else "self_cpu_time_total"
    return str(averages.table(sort_by=by, row_limit=ROWS))
