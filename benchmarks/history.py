"""Add a row with the results of `make bench` to `benchmarks/history.md`: `make history VERSION=0.2.0`.

The output of the benchmarks is read from standard input. A row of the same version is replaced.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["FIGURES", "HISTORY", "add_row", "format_row", "read_reports"]

HISTORY = Path(__file__).with_name("history.md")

FIGURES: dict[str, tuple[str, ...]] = {
    "event, 20 listeners": ("emit", "20 loop path"),
    "through `emit`": ("emit", "20 emit"),
    "Trainer": ("loop", "Trainer, no hooks"),
    "Trainer, demo hooks": ("loop", "Trainer, demo hooks"),
    "EMA update": ("ema", "25 M in 144", "hookbus"),
    "save": ("checkpoint", "hookbus sync", "of torch.save"),
    "async save": ("checkpoint", "hookbus async", "of copy"),
    "overlapped save": ("checkpoint", "hookbus overlap", "of copy"),
    "2 ranks": ("ranks", "Trainer, no requests"),
    "`import hookbus`": ("import", "import hookbus", "of python"),
    "`hookbus check`": ("import", "hookbus check", "of torch"),
}
"""Column and the keys of its ratio in the JSON lines: the benchmark, then the measurement."""


def read_reports(lines: Iterable[str]) -> dict[str, Any]:
    """Return the JSON lines of the benchmarks by name. Other lines are ignored."""
    reports = [json.loads(line) for line in lines if line.startswith('{"benchmark"')]
    return {report["benchmark"]: report for report in reports}


def format_row(version: str, reports: Mapping[str, Any], load: float) -> str:
    """Return the row of a version.

    Args:
        version: Version of the packages.
        reports: Results by benchmark.
        load: Processes that were running before the benchmarks, on average per CPU core.

    Raises:
        SystemExit: If a figure is missing, for example because a benchmark failed.
    """
    python = ".".join(platform.python_version_tuple()[:2])
    torch_version = torch.__version__.partition("+")[0]
    cells = [version, datetime.date.today().isoformat(), python, torch_version, f"{load:.1f}"]
    return f"| {' | '.join([*cells, *(_format_figure(reports, keys) for keys in FIGURES.values())])} |"


def _format_figure(reports: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    value: Any = reports
    for key in keys:
        if key not in value:
            raise SystemExit(f"history: the results contain no {' / '.join(keys)}. Run `make bench` without errors.")
        value = value[key]
    return f"{value:.3g}"


def add_row(text: str, row: str) -> str:
    """Return the page with the row at the end of its table, in place of a row of the same version."""
    start = row[: row.index("|", 1) + 1]
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(start)) + f"{row}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make history", description=__doc__)
    parser.add_argument("version", metavar="VERSION")
    version = parser.parse_args().version
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    row = format_row(version, read_reports(sys.stdin), load)
    HISTORY.write_text(add_row(HISTORY.read_text(), row))


if __name__ == "__main__":
    main()
