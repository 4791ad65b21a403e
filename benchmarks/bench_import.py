"""Startup cost of complete processes, interleaved, compared with an idle Python and one that imports torch.

Run `python -m benchmarks.bench_import [--rounds 7]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import print_table, report

RUN_FILE = "docs/examples/digits.yaml"
FAKE_PLUGINS = 50
PYTHON, TORCH = "python -c pass", 'python -c "import torch"'
TARGETS = {
    "import hookbus": 120 / 13,
    "hookbus hooks": 300 / 13,
    f"hookbus hooks, {FAKE_PLUGINS} more plugins": 300 / 13,
}
"""Maximum ratio to the bare Python: 120 and 300 ms if the bare Python takes 13 ms."""


def fake_plugins(directory: Path) -> None:
    """Create distributions that consist of metadata only; `hookbus hooks` reads nothing else."""
    for i in range(FAKE_PLUGINS):
        info = directory / f"hookbus_fake{i}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: hookbus-fake{i}\nVersion: 1.0\nRequires-Dist: hookbus\n"
        )
        (info / "entry_points.txt").write_text(f"[hookbus.hooks]\nfake{i} = hookbus_fake{i}:FakeHook\n")


def milliseconds(arguments: list[str], path: str | None) -> float:
    """Run a process and return its duration in milliseconds. `path` is prepended to its PYTHONPATH."""
    known = [path, os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in known if entry)}
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def measure(rounds: int, with_plugins: str) -> dict[str, list[float]]:
    """Measure the processes in turn and return milliseconds per round. The first round fills the disk cache."""
    hooks = ["-m", "hookbus", "hooks"]
    candidates: dict[str, tuple[list[str], str | None]] = {
        PYTHON: (["-c", "pass"], None),
        TORCH: (["-c", "import torch"], None),
        "import hookbus": (["-c", "import hookbus"], None),
        "hookbus hooks": (hooks, None),
        f"hookbus hooks, {FAKE_PLUGINS} more plugins": (hooks, with_plugins),
        "hookbus check": (["-m", "hookbus", "check", RUN_FILE], None),
    }
    results: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, candidate in candidates.items():
            results[name].append(milliseconds(*candidate))
    return {name: values[1:] for name, values in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    with tempfile.TemporaryDirectory() as directory:
        fake_plugins(Path(directory))
        results = measure(parser.parse_args().rounds, directory)
    rows, figures = [], {}
    for name, values in results.items():
        to_python, to_torch = (
            statistics.median(a / b for a, b in zip(values, results[base], strict=True)) for base in (PYTHON, TORCH)
        )
        target = f"{TARGETS[name]:.1f}" if name in TARGETS else ""
        rows.append([name, f"{statistics.median(values):.0f}", f"{to_python:.1f}", target, f"{to_torch:.3f}"])
        figures[name] = {"of python": round(to_python, 3), "of torch": round(to_torch, 4)}
    print_table("Complete processes", ["", "ms", "of python", "target", "of import torch"], rows)
    report("import", **figures)


if __name__ == "__main__":
    main()
