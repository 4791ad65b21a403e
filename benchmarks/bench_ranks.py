"""Cost of synchronizing requests across ranks: a tiny MLP, two gloo processes on one machine.

The same DistributedDataParallel loop is hand-written, trained by a Trainer whose hooks make no requests, and by one
with a hook that may make requests, with `agree_every` 1 and 10; interleaved, block by block. The hand-written loop is
measured twice, which shows the noise of the measurement.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import print_table, report
from hookbus import Hook, Trainer
from hookbus.distributed.process_collectives import get_collectives

Batch = tuple[Tensor, Tensor]
BATCHES = 50


class RequestingHook(Hook):
    """Hook that may make requests but makes none."""


class NonRequestingHook(Hook):
    """Hook that declares that it makes no requests."""

    makes_requests = False


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


class TimedLoader:
    """Loader that repeats the batches of a block and measures the duration of each block."""

    def __init__(self, blocks: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.data = [(torch.randn(32, 64, generator=generator), torch.zeros(32).long()) for _ in range(BATCHES)]
        self.blocks = blocks
        self.seconds: list[float] = []

    def __len__(self) -> int:
        return self.blocks * BATCHES

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.blocks):
            start = time.perf_counter()
            yield from self.data
            self.seconds.append((time.perf_counter() - start) / BATCHES)


def hand_written(loader: TimedLoader) -> None:
    model, optimizer = make_model()
    wrapper = DistributedDataParallel(model)
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.cross_entropy(wrapper(inputs), targets).backward()
        optimizer.step()


def with_trainer(loader: TimedLoader, hook: Hook, **options: Any) -> None:
    settings: dict[str, Any] = {"epochs": 1, "default_hooks": False, "device": "cpu", "work_dir": None, **options}
    Trainer(*make_model(), functional.cross_entropy, loader, hooks=[hook], **settings).fit()


def measure(blocks: int) -> None:
    """Measure in one rank of the process group."""
    torch.set_num_threads(1)
    ranks = get_collectives()
    variants: dict[str, Any] = {
        "hand-written loop": hand_written,
        "hand-written loop, again": hand_written,
        "Trainer, no requests": lambda loader: with_trainer(loader, NonRequestingHook()),
        "Trainer, agree_every: 10": lambda loader: with_trainer(loader, RequestingHook(), agree_every=10),
        "Trainer, agree_every: 1": lambda loader: with_trainer(loader, RequestingHook()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(blocks):
        for name, train in variants.items():
            loader = TimedLoader(2)  # the first block warms up
            train(loader)
            seconds[name].append(loader.seconds[-1])
    if ranks.is_main:
        show(seconds, ranks.world_size)


def show(seconds: dict[str, list[float]], world_size: int) -> None:
    bare = seconds["hand-written loop"]
    rows, figures = [], {}
    for name, own in seconds.items():
        added = statistics.median(a - b for a, b in zip(own, bare, strict=True)) * 1e6
        ratio = statistics.median(a / b for a, b in zip(own, bare, strict=True))
        rows.append([name, f"{statistics.median(own) * 1e6:.0f}", f"{added:+.0f}", f"{ratio:.3f}"])
        figures[name] = round(ratio, 4)
    print_table(f"One iteration, {world_size} processes", ["", "us", "added us", "ratio"], rows)
    report("ranks", world_size=world_size, **figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        measure(arguments.blocks)
        return
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.ranks)]
    inside = ["-m", "benchmarks.bench_ranks", "--inside", "--blocks", str(arguments.blocks)]
    subprocess.run([sys.executable, *torchrun, *inside], check=True)


if __name__ == "__main__":
    main()
