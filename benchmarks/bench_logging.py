"""Microseconds per iteration that each back end adds, at interval 1 and 50.

    python -m benchmarks.bench_logging [--iterations 20000] [--rounds 5]

A loop of one's own emits the points of an iteration around nothing; what is measured is the difference to the same loop
without a back end: the processor time of the training thread, which says the same on a machine that is busy; the time
that passes in the loop, the work of the writer's thread included; and until the run has ended and all is written. Back
ends are measured where they are installed.
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

BACK_ENDS = {
    "jsonl": "hookbus_logger:JsonlHook",
    "tensorboard": "hookbus_tensorboard:TensorBoardHook",
    "mlflow": "hookbus_mlflow:MLflowHook",
    "wandb": "hookbus_wandb:WandbHook",
}
SETTINGS: dict[str, dict[str, Any]] = {"wandb": {"mode": "offline"}}
INTERVALS = (1, 50)


def hook_of(name: str, interval: int) -> Hook:
    module, _, cls = BACK_ENDS[name].partition(":")
    made: Hook = getattr(importlib.import_module(module), cls)(interval=interval, **SETTINGS.get(name, {}))
    return made


def candidates() -> dict[str, tuple[str, int] | None]:
    found: dict[str, tuple[str, int] | None] = {"nothing": None}
    for name in BACK_ENDS:
        with suppress(ImportError):
            hook_of(name, 1)
            found |= {f"{name}, interval {interval}": (name, interval) for interval in INTERVALS}
    return found


def loop(hooks: list[Hook], iterations: int) -> tuple[float, float, float]:
    """Microseconds per iteration of the thread's own work in the loop, inside the loop, and with the end of the run."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = {"loss": torch.tensor(0.5)}
    bus = HookBus(hooks)
    with tempfile.TemporaryDirectory() as directory:
        with bus.run(model=model, optimizer=optimizer, iterations=iterations, work_dir=directory, counts_steps=True):
            bus.emit("before_train_iter", batch_idx=0, batch=None)
            bus.emit("after_train_iter", batch_idx=0, batch=None, outputs=outputs)
            began, begun = time.perf_counter(), time.thread_time()
            for i in range(1, iterations):
                bus.emit("before_train_iter", batch_idx=i, batch=None)
                bus.emit("before_optimizer_step")
                bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i, batch=None, outputs=outputs)
            own, inside = time.thread_time() - begun, time.perf_counter() - began
        whole = time.perf_counter() - began
    return own / iterations * 1e6, inside / iterations * 1e6, whole / iterations * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("WANDB_SILENT", "true")
    found, measured = candidates(), dict[str, list[tuple[float, float, float]]]()
    for _ in range(given.rounds):
        for name, made in found.items():
            hooks = [hook_of(*made)] if made is not None else []
            measured.setdefault(name, []).append(loop(hooks, given.iterations))
    rows, figures = [], {}
    for name, rounds in measured.items():
        added = [map(sub, each, base) for each, base in zip(rounds, measured["nothing"], strict=True)]
        own, inside, whole = (statistics.median(each) for each in zip(*added, strict=True))
        rows.append([name, f"{own:.1f}", f"{inside:.1f}", f"{whole:.1f}"])
        figures[name] = round(own, 2)
    print_table("Added to an iteration, microseconds", ["", "processor", "in the loop", "with the end"], rows)
    report("logging", **figures)


if __name__ == "__main__":
    main()
