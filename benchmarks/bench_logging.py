"""Microseconds per iteration that each backend adds at intervals 1 and 50.

    python -m benchmarks.bench_logging [--iterations 20000] [--rounds 5]

A custom loop emits the points of an iteration without any work. Measured is the difference to the same loop without a
backend: CPU time of the training thread, which does not depend on other load; wall-clock time in the loop,
including the writer thread; and wall-clock time until the run has ended and everything is written. Backends are
measured if installed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import tempfile
import time
from contextlib import suppress
from operator import sub
from typing import Any

import torch

from benchmarks.measure import print_table, report
from hookbus import Hook, HookBus

BACKENDS = {
    "jsonl": "hookbus_logger:JsonlHook",
    "tensorboard": "hookbus_tensorboard:TensorBoardHook",
    "mlflow": "hookbus_mlflow:MLflowHook",
    "wandb": "hookbus_wandb:WandbHook",
}
SETTINGS: dict[str, dict[str, Any]] = {"wandb": {"mode": "offline"}}
INTERVALS = (1, 50)


def make_hook(name: str, interval: int) -> Hook:
    module, _, cls = BACKENDS[name].partition(":")
    hook: Hook = getattr(importlib.import_module(module), cls)(interval=interval, **SETTINGS.get(name, {}))
    return hook


def candidates() -> dict[str, tuple[str, int] | None]:
    installed: dict[str, tuple[str, int] | None] = {"nothing": None}
    for name in BACKENDS:
        with suppress(ImportError):
            make_hook(name, 1)
            installed |= {f"{name}, interval {interval}": (name, interval) for interval in INTERVALS}
    return installed


def loop(hooks: list[Hook], iterations: int) -> tuple[float, float, float]:
    """Return microseconds per iteration: CPU time in the loop, wall-clock time in the loop, and until the end."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = {"loss": torch.tensor(0.5)}
    bus = HookBus(hooks)
    with tempfile.TemporaryDirectory() as directory:
        with bus.run(model=model, optimizer=optimizer, iterations=iterations, work_dir=directory, counts_steps=True):
            bus.emit("before_train_iter", batch_idx=0, batch=None)
            bus.emit("after_train_iter", batch_idx=0, batch=None, outputs=outputs)
            start, thread_start = time.perf_counter(), time.thread_time()
            for i in range(1, iterations):
                bus.emit("before_train_iter", batch_idx=i, batch=None)
                bus.emit("before_optimizer_step")
                bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i, batch=None, outputs=outputs)
            own, inside = time.thread_time() - thread_start, time.perf_counter() - start
        whole = time.perf_counter() - start
    return own / iterations * 1e6, inside / iterations * 1e6, whole / iterations * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("WANDB_SILENT", "true")
    cases, measured = candidates(), dict[str, list[tuple[float, float, float]]]()
    for _ in range(arguments.rounds):
        for name, case in cases.items():
            hooks = [make_hook(*case)] if case is not None else []
            measured.setdefault(name, []).append(loop(hooks, arguments.iterations))
    rows, figures = [], {}
    for name, rounds in measured.items():
        added = [map(sub, measurement, base) for measurement, base in zip(rounds, measured["nothing"], strict=True)]
        own, inside, whole = (statistics.median(measurement) for measurement in zip(*added, strict=True))
        rows.append([name, f"{own:.1f}", f"{inside:.1f}", f"{whole:.1f}"])
        figures[name] = round(own, 2)
    print_table("Added to an iteration, microseconds", ["", "CPU", "in the loop", "until the end"], rows)
    report("logging", **figures)


if __name__ == "__main__":
    main()
