"""Output of the profiler: traces, operator tables and the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text
from torch.profiler import profile

from hookbus import Run
from hookbus.distributed import is_main, rank, world_size
from hookbus.writers import OutputFiles, iter_numbered_paths
from hookbus_profiler.config import ProfilerConfig
from hookbus_profiler.profiling_window import Cycle
from hookbus_profiler.report import Report

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
            name: Name of the cycle, used in the file names.

        Returns:
            A message if a file exceeds the size limit, after which no files are written; otherwise None.

        Raises:
            OSError: If a file cannot be written.
        """
        if self._is_full:
            return None
        message = self._write_file(
            f"{name}.operators.txt", lambda path: path.write_text(format_operators(profiler), "utf-8")
        )
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


class ProfilerOutput:
    """Write the profiler output of one run to files and the console; to the console only without a work directory."""

    def __init__(self, run: Run, config: ProfilerConfig, name: str) -> None:
        self._run, self._config, self._name = run, config, name
        self._files: OutputFiles | None = None
        if (work_dir := run.get("experiment_dir")) is not None:
            self._files = OutputFiles(run, Path(work_dir) / "profiler")
            run.register_output(self._files.directory, "traces and report of the profiler")
            suffix = ".pt.trace.json.gz" if config.export_tensorboard else ".json.gz"
            # Each rank writes its own files without communication, so the limit is divided evenly.
            max_bytes = config.max_megabytes * 1e6 / world_size()
            self._traces = TraceWriter(
                self._files, f"rank{rank()}", suffix if config.export_chrome_trace else None, max_bytes
            )

    def write_cycle(self, cycle: Cycle, number: int) -> None:
        """Write the output of a cycle and call `on_trace_ready`.

        Args:
            number: Number of the cycle, counted from 1.

        Raises:
            OSError: If a file cannot be written.
        """
        run = self._run
        if self._files is not None:
            problem = self._traces.write(cycle.profile, f"cycle{number}-iteration{run.iters_done}")
            if problem is not None:
                run.logger.warning("%s: %s", self._name, problem)
        else:
            run.logger.info("%s: the most expensive operators\n%s", self._name, format_operators(cycle.profile))
        if self._config.on_trace_ready is not None:
            self._config.on_trace_ready(cycle.profile)

    def write_report(self, report: Report) -> None:
        """Write the report to a file on the main process. Reports of earlier runs are not overwritten.

        Raises:
            OSError: If the file cannot be written.
        """
        if self._files is not None and is_main():
            paths = iter_numbered_paths(self._files.directory / "report.txt")
            name = next(path.name for path in paths if not os.path.lexists(path))
            self._files.write(name, lambda file: file.write(report.to_text().encode()))

    def print_report(self, report: Report) -> None:
        """Print the report and the output directory on the main process."""
        if not is_main():
            return
        console = self._run.get("console") or Console(highlight=False)
        console.print(report)
        if self._files is not None:
            console.print(Text(f"Profiler output: {self._files.directory}"), soft_wrap=True)
