"""Shared parts of the peers: data, model, lower bound and the two comparisons. Requires torch and scikit-learn only."""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import compare_to_floor, measure_interleaved, nothing, print_table, report, unrolled_calls

Batch = tuple[Tensor, Tensor]
Batches = TypeVar("Batches")
Event = Callable[[int, bool], Callable[[], Any]]
"""Function of (number of listeners, whether they are due only every 100th iteration) that returns an emitter."""
Loop = Callable[["Blocks"], None]
"""Function that trains for one epoch over the given loader."""

COUNTS = (0, 1, 5, 10, 20)
BATCH = 32
OURS = "hookbus"


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def adam(trained: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(trained.parameters(), lr=1e-3)


def compute_loss(trained: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(trained(images), labels)


class Blocks(DataLoader[Any]):
    """Loader that runs a block of the bare loop before each block of its own batches and measures both.

    The first block, which includes the setup of the trainer and lazy imports, is discarded.
    """

    def __init__(self, blocks: int = 11, batches: int = 20) -> None:
        dataset = load_digits()
        images = torch.as_tensor(dataset.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.as_tensor(dataset.target, dtype=torch.int64)
        super().__init__(TensorDataset(images[: BATCH * batches], labels[: BATCH * batches]), batch_size=BATCH)
        self.batches: list[Batch] = [
            (images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, BATCH * batches, BATCH)
        ]
        self.blocks = blocks
        self.bare_model = model()
        self.bare_optimizer = adam(self.bare_model)
        self.pairs: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return self.blocks * len(self.batches)

    def bare(self) -> float:
        """Run the bare loop and return the seconds per iteration."""
        start = time.perf_counter()
        for batch in self.batches:
            self.bare_optimizer.zero_grad()
            compute_loss(self.bare_model, batch).backward()
            self.bare_optimizer.step()
        return (time.perf_counter() - start) / len(self.batches)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for block in range(self.blocks):
            bare = self.bare()
            start = time.perf_counter()
            yield from self.batches
            if block:
                self.pairs.append(((time.perf_counter() - start) / len(self.batches), bare))


def floor(count: int) -> Callable[[], None]:
    def listener(run: object, step: int, batch: object) -> None:
        pass

    return unrolled_calls([listener] * count, object(), 1, (1, 2))


def compare_events(events: Mapping[str, Event], rounds: int) -> dict[str, float]:
    """Print the cost of one event for each name and return the ratios to hand-written calls."""
    rows, figures = [], {}
    for count, rarely in [*((count, False) for count in COUNTS), (COUNTS[-1], True)]:
        label = f"{count} listeners" + (" due every 100th iteration" if rarely else "")
        candidates = {name: event(count, rarely) for name, event in events.items()}
        results = measure_interleaved(
            {"nothing": nothing, "hand-written": floor(count), **candidates}, calls=200, rounds=rounds
        )
        measured = {
            name: compare_to_floor(results, name, "hand-written", "nothing") for name in ("hand-written", *events)
        }
        for name, (nanoseconds, ratio) in measured.items():
            compared = not rarely and count > 0
            rows.append([f"{label}: {name}", f"{nanoseconds:.0f}", f"{ratio:.2f}" if compared else ""])
            figures[f"{label}: {name}"] = round(ratio if compared else nanoseconds, 3)
        if OURS in candidates:
            theirs = next(name for name in candidates if name != OURS)
            _, ours_to_theirs = compare_to_floor(results, OURS, theirs, "nothing")
            rows.append([f"{label}: ours / theirs", "", f"{ours_to_theirs:.3f}"])
            figures[f"{label}: ours / theirs"] = round(ours_to_theirs, 4)
    print_table("One event", ["", "ns", "ratio to hand-written"], rows)
    return figures


def run_quietly(loop: Callable[[Batches], None], blocks: Batches) -> None:
    """Train over the blocks and suppress the output."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        loop(blocks)


def compare_loops(loops: Mapping[str, Loop], rounds: int) -> dict[str, float]:
    """Print the cost of one training iteration for each name and return the ratios to the bare loop."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            blocks = Blocks()
            run_quietly(loop, blocks)
            pairs[name] += blocks.pairs
    rows, figures = [], {}
    for name, measured in pairs.items():
        added = statistics.median(own - bare for own, bare in measured) * 1e6
        ratio = statistics.median(own / bare for own, bare in measured)
        bare = statistics.median(bare for _, bare in measured) * 1e6
        rows.append([name, f"{bare:.0f}", f"{added:+.1f}", f"{ratio:.3f}"])
        figures[name] = round(ratio, 4)
    if OURS in loops:
        theirs = next(name for name in loops if name != OURS)
        figures["ours / theirs"] = round(figures[OURS] / figures[theirs], 4)
        rows.append([f"ours / {theirs}", "", "", f"{figures['ours / theirs']:.3f}"])
    print_table("One training iteration", ["", "bare us", "added us", "ratio to bare"], rows)
    return figures


def compare(name: str, event: Event, loops: Mapping[str, Loop], *, shares_environment: bool = True) -> None:
    """Measure a peer, and hookbus in the same process if possible. Print tables and one JSON line.

    Args:
        name: Name of the peer.
        event: Function that creates an emitter of the peer.
        loops: Training functions of the peer by configuration, the most lightweight first.
        shares_environment: Whether hookbus can be imported with the torch version of the peer.
    """
    parser = argparse.ArgumentParser(description=f"hookbus and {name} side by side")
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    events, variants = {name: event}, {f"{name}, {configuration}": loop for configuration, loop in loops.items()}
    if shares_environment:
        from benchmarks.peers import ours

        events, variants = {OURS: ours.event, **events}, {OURS: ours.loop, **variants}
    by_event, by_loop = compare_events(events, rounds), compare_loops(variants, max(1, rounds // 20))
    report(f"peer {name}", torch=torch.__version__, events=by_event, iteration=by_loop)
