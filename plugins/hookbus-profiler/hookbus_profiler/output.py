"""Output of the profiler: traces, operator tables and the report."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hookbus import Run
from hookbus.distributed import is_main, rank, world_size
from hookbus.writers import OutputFiles, iter_numbered_paths
from hookbus_profiler.config import ProfilerConfig
from hookbus_profiler.cycle import Cycle
from hookbus_profiler.report import Report
from hookbus_profiler.traces import TraceWriter, format_operators

__all__ = ["ProfilerOutput"]


class ProfilerOutput:
    """Write the profiler output of one run to files and the console; to the console only without a work directory.

    Args:
        run: Run that is profiled.
        config: Configuration of the hook.
        name: Name of the hook, used in log messages.
    """

    def __init__(self, run: Run, config: ProfilerConfig, name: str) -> None:
        self._run, self._config, self._name = run, config, name
        directory = run.get("experiment_dir")
        self._directory = None if directory is None else Path(directory) / "profiler"
        self._traces: TraceWriter | None = None
        if self._directory is not None:
            run.register_output(self._directory)
            self._files = OutputFiles(run, self._directory)
            suffix = ".pt.trace.json.gz" if config.export_tensorboard else ".json.gz"
            # Each rank writes its own files without communication, so the limit is divided evenly.
            max_bytes = config.max_megabytes * 1e6 / world_size()
            self._traces = TraceWriter(
                self._files, f"rank{rank()}", suffix if config.export_chrome_trace else None, max_bytes
            )

    def write_cycle(self, cycle: Cycle, number: int) -> None:
        """Write the output of a cycle and call `on_trace_ready`.

        Args:
            cycle: Stopped cycle.
            number: Number of the cycle, counted from 1.

        Raises:
            OSError: If a file cannot be written.
        """
        run = self._run
        if self._traces is not None:
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
        if self._directory is not None and is_main():
            text = report.to_text().encode()
            self._files.write(_get_report_name(self._directory), lambda file: file.write(text))

    def print_report(self, report: Report) -> None:
        """Print the report and the output directory on the main process."""
        if not is_main():
            return
        console = self._run.get("console") or Console(highlight=False)
        console.print(report)
        if self._directory is not None:
            console.print(Text(f"Profiler output: {self._directory}"), soft_wrap=True)


def _get_report_name(directory: Path) -> str:
    """Return `report.txt`, or `report-2.txt`, `report-3.txt`, ... if it exists."""
    return next(path.name for path in iter_numbered_paths(directory / "report.txt") if not os.path.lexists(path))
