"""Files with traces and operator tables, limited in total size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.profiler import profile

from hookbus.writers import OutputFiles

__all__ = ["TraceWriter", "format_operators"]

MAX_TABLE_ROWS = 20


class TraceWriter:
    """Write one trace and one operator table per cycle until a size limit is reached.

    Args:
        files: Files of the output directory.
        owner: Prefix of the file names. Existing files with this prefix count toward the limit.
        suffix: Suffix of the trace file names; None to write tables only.
        max_bytes: Maximum total size in bytes.
    """

    def __init__(self, files: OutputFiles, owner: str, suffix: str | None, max_bytes: float) -> None:
        self._files, self._owner, self._suffix, self._max_bytes = files, owner, suffix, max_bytes
        self._is_full = False

    def write(self, profiler: profile, name: str) -> str | None:
        """Write the operator table and the trace of a cycle. Each file is written atomically.

        Args:
            profiler: Stopped torch profiler.
            name: Name of the cycle, used in the file names.

        Returns:
            A message if a file exceeds the size limit, after which no files are written; otherwise None.

        Raises:
            OSError: If a file cannot be written.
        """
        if self._is_full:
            return None
        message = self._write_file(f"{name}.operators.txt", lambda path: path.write_text(format_operators(profiler)))
        if message is None and self._suffix is not None:
            message = self._write_file(f"{name}{self._suffix}", lambda path: profiler.export_chrome_trace(str(path)))
        return message

    def _write_file(self, name: str, write: Callable[[Path], object]) -> str | None:
        path = self._files.choose(self._files.directory / f"{self._owner}-{name}")
        # The size of a trace is known only after its export.
        with self._files.temporary(path.name) as temporary:
            write(temporary)
            size = temporary.stat().st_size
            self._is_full = self._get_total_size(exclude=path) + size > self._max_bytes
            if self._is_full:
                return (
                    f"{path.name}: the files would exceed their limit of {self._max_bytes / 1e6:.3g} MB, as this one "
                    f"has {size / 1e6:.3g} MB. This file and later ones are not written. Reduce `schedule.active` or "
                    "increase `max_megabytes`."
                )
            temporary.replace(path)
        return None

    def _get_total_size(self, *, exclude: Path) -> int:
        """Return the total size of the existing files in bytes, except the one to be replaced."""
        return sum(path.lstat().st_size for path in self._files.directory.glob(f"{self._owner}-*") if path != exclude)


def format_operators(profiler: profile) -> str:
    """Return a table of the operators with the highest self time, on the device if it was profiled."""
    averages = profiler.key_averages()
    on_device = any(event.self_device_time_total for event in averages)
    sort_by = "self_device_time_total" if on_device else "self_cpu_time_total"
    return str(averages.table(sort_by=sort_by, row_limit=MAX_TABLE_ROWS))
