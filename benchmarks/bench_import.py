"""What starting costs: whole processes, taking turns, against a Python that does nothing and one that imports torch.

python -m benchmarks.bench_import [--rounds 7]
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
"""At most so many times the bare Python: 120 and 300 ms where that takes 13."""


def fake_plugins(directory: Path) -> None:
    """Distributions of which there is only the metadata; `hookbus hooks` reads no more."""
    for i in range(FAKE_PLUGINS):
        info = directory / f"hookbus_fake{i}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: hookbus-fake{i}\nVersion: 1.0\nRequires-Dist: hookbus\n"
        )
        (info / "entry_points.txt").write_text(f"[hookbus.hooks]\nfake{i} = hookbus_fake{i}:FakeHook\n")


def milliseconds(arguments: list[str], path: str | None) -> float:
    """How long one process takes; `path` is put on its PYTHONPATH."""
    known = [path, os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in known if each)}
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def measure(rounds: int, with_plugins: str) -> dict[str, list[float]]:
    """Milliseconds of each process, one number per round; the first, which fills the disk's cache, is thrown away."""
    hooks = ["-m", "hookbus", "hooks"]
    candidates: dict[str, tuple[list[str], str | None]] = {
        PYTHON: (["-c", "pass"], None),
        TORCH: (["-c", "import torch"], None),
        "import hookbus": (["-c", "import hookbus"], None),
        "hookbus hooks": (hooks, None),
        f"hookbus hooks, {FAKE_PLUGINS} more plugins": (hooks, with_plugins),
        "hookbus check": (["-m", "hookbus", "check", RUN_FILE], None),
    }
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, candidate in candidates.items():
            found[name].append(milliseconds(*candidate))
    return {name: values[1:] for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    with tempfile.TemporaryDirectory() as directory:
        fake_plugins(Path(directory))
        found = measure(parser.parse_args().rounds, directory)
    rows, figures = [], {}
    for name, values in found.items():
        to_python, to_torch = (
            statistics.median(a / b for a, b in zip(values, found[base], strict=True)) for base in (PYTHON, TORCH)
        )
        target = f"{TARGETS[name]:.1f}" if name in TARGETS else ""
        rows.append([name, f"{statistics.median(values):.0f}", f"{to_python:.1f}", target, f"{to_torch:.3f}"])
        figures[name] = {"of python": round(to_python, 3), "of torch": round(to_torch, 4)}
    print_table("Whole processes", ["", "ms", "of python", "target", "of import torch"], rows)
    report("import", **figures)


if __name__ == "__main__":
    main()
