"""The files of traces, whose size has an end.

Usable without hookbus.
"""

from __future__ import annotations

from pathlib import Path

from torch.profiler import profile

__all__ = ["Traces", "operators"]

ROWS = 20


class Traces:
    """Writes one trace and one table of operators per cycle.

    Args:
        directory: where to.
        suffix: the end of the names of traces; None for no traces, tables alone.
        most: bytes that all traces may take together.
    """

    def __init__(self, directory: Path, suffix: str | None, most: float) -> None:
        self._directory, self._suffix, self._most = directory, suffix, most
        self._bytes = 0

    def write(self, finished: profile, name: str) -> str | None:
        """Write what a cycle has recorded. A trace is there as a whole or not at all.

        Args:
            finished: the torch profiler, switched off.
            name: the first part of the names of the files.

        Returns:
            A sentence where the trace is left out because it is too large.

        Raises:
            OSError: something could not be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / f"{name}.operators.txt").write_text(operators(finished))
        if self._suffix is None:
            return None
        path = self._directory / f"{name}{self._suffix}"
        hidden = path.with_name(f".tmp-{path.name}")
        try:
            finished.export_chrome_trace(str(hidden))
            size = hidden.stat().st_size
            if self._bytes + size > self._most:
                return (
                    f"The trace {path.name} is left out: with its {size / 1e6:.3g} MB all traces would take more than "
                    f"{self._most / 1e6:.3g} MB. Trace fewer iterations (schedule.active), or raise max_megabytes."
                )
            self._bytes += size
            hidden.replace(path)
        finally:
            hidden.unlink(missing_ok=True)
        return None


def operators(finished: profile) -> str:
    """The operators that took most time by themselves, as a table."""
    averages = finished.key_averages()
    on_device = any(each.self_device_time_total for each in averages)
    by = "self_device_time_total" if on_device else "self_cpu_time_total"
    return str(averages.table(sort_by=by, row_limit=ROWS))
