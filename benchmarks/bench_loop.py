"""Cost of a training iteration relative to a bare PyTorch loop: a tiny MLP on digits, batch size 32, one thread.

The loader of the Trainer runs the bare loop between its blocks, so both are measured under the same conditions.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import print_table, report
from hookbus import Hook, Trainer, build_hook
from hookbus_zoo import digits, mlp

Batch = tuple[Tensor, Tensor]
DEMO_HOOKS = ("logger", "jsonl", "progress", "iter_timer", "checkpoint", "preemption")


def batches() -> list[Batch]:
    data = digits().train
    images, labels = data.tensors
    return [(images[i : i + 32], labels[i : i + 32]) for i in range(0, 32 * 40, 32)]


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = mlp()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


class Blocks:
    """Loader that runs a block of the bare loop before each block of its own batches and measures both."""

    def __init__(self, data: list[Batch], blocks: int) -> None:
        self.data, self.blocks = data, blocks
        self.model, self.optimizer = make_model()
        self.pairs: list[tuple[float, float]] = []

    def bare(self) -> float:
        start = time.perf_counter()
        for images, labels in self.data:
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
        return (time.perf_counter() - start) / len(self.data)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.blocks):
            bare = self.bare()
            start = time.perf_counter()
            yield from self.data
            self.pairs.append(((time.perf_counter() - start) / len(self.data), bare))


class BareStateHook(Hook):
    """Hook that saves the state of the bare loop: a checkpoint has to contain every optimizer that steps."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self.blocks = blocks

    def state_dict(self) -> dict[str, Any]:
        return {"model": dict(self.blocks.model.state_dict()), "optimizer": self.blocks.optimizer.state_dict()}


class BareAgain(Blocks):
    """The bare loop instead of the Trainer, which shows the noise of the measurement."""

    def run(self) -> None:
        for _ in range(self.blocks):
            bare = self.bare()
            self.pairs.append((self.bare(), bare))


def with_trainer(blocks: Blocks, hooks: list[Any], work_dir: str | None) -> None:
    model, optimizer = make_model()
    trainer = Trainer(
        model,
        optimizer,
        functional.cross_entropy,
        blocks,
        epochs=1,
        hooks=hooks,
        default_hooks=False,
        device="cpu",
        work_dir=work_dir,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.fit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    count = parser.parse_args().blocks
    torch.set_num_threads(1)
    data = batches()
    with_trainer(Blocks(data, 3), [], None)  # torch imports modules lazily in the first step
    again, none, demo = BareAgain(data, count), Blocks(data, count), Blocks(data, count)
    again.run()
    with_trainer(none, [], None)
    with tempfile.TemporaryDirectory() as directory:
        hooks = [build_hook({"type": name}) for name in DEMO_HOOKS]
        with_trainer(demo, [*hooks, BareStateHook(demo)], directory)
    rows, figures = [], {}
    for name, measured in (("bare loop, again", again), ("Trainer, no hooks", none), ("Trainer, demo hooks", demo)):
        added = statistics.median(own - bare for own, bare in measured.pairs) * 1e6
        ratio = statistics.median(own / bare for own, bare in measured.pairs)
        bare = statistics.median(bare for _, bare in measured.pairs) * 1e6
        rows.append([name, f"{bare:.0f}", f"{added:+.1f}", f"{ratio:.3f}"])
        figures[name] = round(ratio, 4)
    print_table("One training iteration", ["", "bare us", "added us", "ratio to bare"], rows)
    report("loop", **figures)


if __name__ == "__main__":
    main()
