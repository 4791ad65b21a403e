"""What one update of a moving average costs, against one copy of the same bytes (the floor) and the peers.

Transformer layers with 25 M parameters in 144 tensors and 100 M in 396; one thread. Peers are measured where they are
installed. Below that a training iteration: without an average, with one in line, with one on another thread.

    python -m benchmarks.bench_ema [--rounds 20]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from benchmarks.measure import against, interleaved, print_table, report
from hookbus_ema import ExponentialMovingAverage, OverlappedAverage

MOMENTUM = 0.9999
SIZES = {"25 M in 144": (12, 416), "100 M in 396": (33, 502)}
"""Layers of 12 tensors, and their width."""


def layers(count: int, width: int) -> nn.Module:
    torch.manual_seed(0)
    make = [nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True) for _ in range(count)]
    return nn.Sequential(*make)


def copy(model: nn.Module) -> Callable[[], Any]:
    """The floor: the bytes of the weights into other memory, in one piece."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    target = torch.empty_like(flat)
    return lambda: target.copy_(flat)


def kept_lists(model: nn.Module) -> Callable[[], Any]:
    """The fused call alone."""
    weights: list[torch.Tensor] = list(model.parameters())
    averages = [weight.detach().clone() for weight in weights]

    def update() -> None:
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1 - MOMENTUM)

    return update


def averaged_model(model: nn.Module, **options: Any) -> Callable[[], Any]:
    averaged = AveragedModel(model, **options)
    averaged.update_parameters(model)
    return lambda: averaged.update_parameters(model)


def ours(model: nn.Module) -> Callable[[], Any]:
    return ExponentialMovingAverage(model, MOMENTUM, warm_up=0).update


def ema_pytorch(model: nn.Module) -> Callable[[], Any]:
    package = importlib.import_module("ema_pytorch")
    average = package.EMA(model, beta=MOMENTUM, update_after_step=0, update_every=1, use_foreach=True)
    average.update()
    return average.update  # type: ignore[no-any-return]


def timm(model: nn.Module) -> Callable[[], Any]:
    average = importlib.import_module("timm.utils").ModelEmaV3(model, decay=MOMENTUM, foreach=True)
    return lambda: average.update(model)


def mmengine(model: nn.Module) -> Callable[[], Any]:
    average = importlib.import_module("mmengine.model").ExponentialMovingAverage(model, momentum=1 - MOMENTUM)
    average.update_parameters(model)
    return lambda: average.update_parameters(model)


CANDIDATES: Mapping[str, Callable[[nn.Module], Callable[[], Any]]] = {
    "one copy": copy,
    "hookbus": ours,
    "foreach, lists kept": kept_lists,
    "AveragedModel, multi_avg_fn": lambda model: averaged_model(model, multi_avg_fn=get_ema_multi_avg_fn(MOMENTUM)),
    "AveragedModel, avg_fn": lambda model: averaged_model(model, avg_fn=get_ema_avg_fn(MOMENTUM)),
    "ema-pytorch": ema_pytorch,
    "timm ModelEmaV3": timm,
    "MMEngine": mmengine,
}


def candidates(model: nn.Module) -> dict[str, Callable[[], Any]]:
    """Those that are installed, each with averages of its own that have been updated once."""
    found: dict[str, Callable[[], Any]] = {"nothing": lambda: None}
    for name, make in CANDIDATES.items():
        with suppress(ImportError):
            found[name] = make(model)
            found[name]()
    return found


def updates(size: str, rounds: int) -> dict[str, float]:
    """Print a table of one size.

    Returns:
        By candidate, the ratio to one copy.
    """
    results = interleaved(candidates(layers(*SIZES[size])), calls=1, rounds=rounds)
    measured = {name: against(results, name, "one copy", "nothing") for name in results if name != "nothing"}
    rows = [[name, f"{nanoseconds / 1e6:.1f}", f"{ratio:.2f}"] for name, (nanoseconds, ratio) in measured.items()]
    print_table(f"One update, {size} tensors", ["", "ms", "ratio to one copy"], rows)
    return {name: round(ratio, 3) for name, (_, ratio) in measured.items()}


class Iteration:
    """Forward, backward, optimizer step, and an update of the average; the weights are those of 25 M.

    Attributes:
        still: seconds that each iteration stood still for the average.
    """

    def __init__(self, model: nn.Module, average: ExponentialMovingAverage | None) -> None:
        self.model, self.average = model, average
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        self.inputs = torch.randn(2, 12, SIZES["25 M in 144"][1])
        self.still: list[float] = []

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        began = time.perf_counter()
        if self.average is not None:
            self.average.wait()
        waited = time.perf_counter() - began
        self.optimizer.step()
        began = time.perf_counter()
        if self.average is not None:
            self.average.update()
        self.still.append(waited + time.perf_counter() - began)


def iterations(rounds: int) -> dict[str, float]:
    """Print what an average adds to a training iteration.

    Returns:
        By way, the ratio to an iteration without an average.
    """
    model = layers(*SIZES["25 M in 144"])
    ways = {
        "no average": Iteration(model, None),
        "no average, again": Iteration(model, None),
        "in line": Iteration(model, ExponentialMovingAverage(model, MOMENTUM)),
        "overlapped": Iteration(model, OverlappedAverage(model, MOMENTUM)),
    }
    for way in ways.values():
        way()
    results = interleaved({"nothing": lambda: None, **ways}, calls=1, rounds=rounds)
    rows, figures = [], {}
    for name, way in ways.items():
        nanoseconds, ratio = against(results, name, "no average", "nothing")
        rows.append([name, f"{nanoseconds / 1e6:.1f}", f"{ratio:.3f}", f"{statistics.median(way.still) * 1e3:.2f}"])
        figures[name] = round(ratio, 4)
    print_table("One training iteration, 25 M", ["", "ms", "ratio to no average", "stands still, ms"], rows)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for size in SIZES:
        figures[size] = updates(size, rounds)
        gc.collect()
    report("ema", **figures, iteration=iterations(rounds))


if __name__ == "__main__":
    main()
