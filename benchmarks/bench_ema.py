"""Cost of one update of a moving average, compared with one copy of the same bytes (the lower bound) and with peers.

Transformer layers with 25 M parameters in 144 tensors and 100 M in 396; one thread. Peers are measured if installed.
In addition, a training iteration is measured without an average, with a synchronous one, and with one on another
thread.
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

from benchmarks.measure import compare_to_floor, measure_interleaved, print_table, report
from hookbus_ema import AsyncMovingAverage, ExponentialMovingAverage

MOMENTUM = 0.9999
SIZES = {"25 M in 144": (12, 416), "100 M in 396": (33, 502)}
"""Number of layers of 12 tensors each, and their width."""


def layers(count: int, width: int) -> nn.Module:
    torch.manual_seed(0)
    make = [nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True) for _ in range(count)]
    return nn.Sequential(*make)


def copy(model: nn.Module) -> Callable[[], Any]:
    """Return the lower bound: a copy of all parameters in one contiguous tensor."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    target = torch.empty_like(flat)
    return lambda: target.copy_(flat)


def prebuilt_lists(model: nn.Module) -> Callable[[], Any]:
    """Return the fused call without any bookkeeping."""
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
    "foreach, prebuilt lists": prebuilt_lists,
    "AveragedModel, multi_avg_fn": lambda model: averaged_model(model, multi_avg_fn=get_ema_multi_avg_fn(MOMENTUM)),
    "AveragedModel, avg_fn": lambda model: averaged_model(model, avg_fn=get_ema_avg_fn(MOMENTUM)),
    "ema-pytorch": ema_pytorch,
    "timm ModelEmaV3": timm,
    "MMEngine": mmengine,
}


def candidates(model: nn.Module) -> dict[str, Callable[[], Any]]:
    """Return the installed candidates, each with an average that was updated once."""
    installed: dict[str, Callable[[], Any]] = {"nothing": lambda: None}
    for name, make in CANDIDATES.items():
        with suppress(ImportError):
            installed[name] = make(model)
            installed[name]()
    return installed


def updates(size: str, rounds: int) -> dict[str, float]:
    """Print the table of one size.

    Returns:
        Ratios to one copy by candidate.
    """
    results = measure_interleaved(candidates(layers(*SIZES[size])), calls=1, rounds=rounds)
    measured = {name: compare_to_floor(results, name, "one copy", "nothing") for name in results if name != "nothing"}
    rows = [[name, f"{nanoseconds / 1e6:.1f}", f"{ratio:.2f}"] for name, (nanoseconds, ratio) in measured.items()]
    print_table(f"One update, {size} tensors", ["", "ms", "ratio to one copy"], rows)
    return {name: round(ratio, 3) for name, (_, ratio) in measured.items()}


class Iteration:
    """Training iteration: forward pass, backward pass, optimizer step and update of the average, with 25 M parameters.

    Attributes:
        blocked: Seconds that each iteration was blocked by the average.
    """

    def __init__(self, model: nn.Module, average: ExponentialMovingAverage | None) -> None:
        self.model, self.average = model, average
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        self.inputs = torch.randn(2, 12, SIZES["25 M in 144"][1])
        self.blocked: list[float] = []

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        start = time.perf_counter()
        if self.average is not None:
            self.average.wait()
        waited = time.perf_counter() - start
        self.optimizer.step()
        start = time.perf_counter()
        if self.average is not None:
            self.average.update()
        self.blocked.append(waited + time.perf_counter() - start)


def iterations(rounds: int) -> dict[str, float]:
    """Print the cost that an average adds to a training iteration.

    Returns:
        Ratios to an iteration without an average by variant.
    """
    model = layers(*SIZES["25 M in 144"])
    variants = {
        "no average": Iteration(model, None),
        "no average, again": Iteration(model, None),
        "in line": Iteration(model, ExponentialMovingAverage(model, MOMENTUM)),
        "overlapped": Iteration(model, AsyncMovingAverage(model, MOMENTUM)),
    }
    for iteration in variants.values():
        iteration()
    results = measure_interleaved({"nothing": lambda: None, **variants}, calls=1, rounds=rounds)
    rows, figures = [], {}
    for name, iteration in variants.items():
        nanoseconds, ratio = compare_to_floor(results, name, "no average", "nothing")
        rows.append(
            [name, f"{nanoseconds / 1e6:.1f}", f"{ratio:.3f}", f"{statistics.median(iteration.blocked) * 1e3:.2f}"]
        )
        figures[name] = round(ratio, 4)
    print_table("One training iteration, 25 M", ["", "ms", "ratio to no average", "blocked, ms"], rows)
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
