"""What watching a training costs: microseconds per iteration of each observer, off, waiting and active.

A loop of one's own does little but fire the points of an iteration, so what a hook adds to it is the whole cost of its
being there; it is shown as a share of a step of one millisecond. Off is `enabled: false`. A record of pictures, in
milliseconds, shows 16 images of 64 by 64 pixels; it is neither written nor recorded.

    python -m benchmarks.bench_observers [--rounds 30]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.measure import print_table, report
from hookbus import HookBus, build_hook

ITERATIONS = 200
STEP = 1000.0
"""Microseconds of the step that costs are compared with."""

OFTEN, NEVER = 1, 10**9
OFF: dict[str, object] = {"enabled": False}
CASES: dict[str, dict[str, dict[str, object]]] = {
    "iter_timer": {"waiting": {"interval": NEVER}, "active": {"interval": OFTEN}},
    "gradient_flow": {"waiting": {"frequency": NEVER}, "active": {"frequency": OFTEN}},
    "memory_profiler": {"waiting": {"interval": NEVER}, "active": {}},
    "system_monitor": {"waiting": {"interval": 3600.0, "frequency": NEVER}, "active": {}},
    "profiler": {
        "waiting": {"profile_iters": 1},
        "timing": {"profile_iters": NEVER, "schedule": {"wait": NEVER - 1, "warmup": 0, "active": 1}},
        "active": {"profile_iters": NEVER, "schedule": {"wait": 0, "warmup": 0, "active": NEVER}},
    },
}
CASES |= {
    name: {"waiting": {"interval": NEVER}} for name in ("visualization", "det_visualization", "seg_visualization")
}
CASES |= {"feature_map": {"waiting": {"frequency": NEVER}}}
"""By hook and state, the settings that bring it about; `timing` is the profiler between two traces. Active is at every
iteration, and for the two monitors at their default intervals: they are not meant to be there more often."""

PICTURES: dict[str, dict[str, object]] = {
    "predictions, pillow": {"type": "visualization", "interval": 1, "backend": "pillow"},
    "predictions, matplotlib": {"type": "visualization", "interval": 1, "backend": "matplotlib"},
    "predictions, tensorboard": {"type": "visualization", "interval": 1, "backend": "tensorboard"},
    "feature maps": {"type": "feature_map", "frequency": 1, "backend": "pillow"},
    "class activation": {"type": "visualization", "interval": 1, "backend": "pillow", "content": ["cam"]},
    "gradients": {"type": "visualization", "interval": 1, "backend": "pillow", "content": ["gradients"]},
    "boxes, 10 per image": {"type": "det_visualization", "interval": 1, "backend": "pillow"},
    "masks": {"type": "seg_visualization", "interval": 1, "backend": "pillow"},
}
RECORDS = 5


def one_round(settings: dict[str, object] | None) -> float:
    """Microseconds per iteration of one run, without its beginning and its end."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch, fixed = torch.ones(4, 8), model(torch.ones(4, 8)).sum()
    fixed.backward()
    bus = HookBus([] if settings is None else [build_hook(settings)])
    with contextlib.redirect_stdout(io.StringIO()), bus.run(model=model, optimizer=optimizer, iterations=NEVER) as run:
        loop(bus, batch, optimizer, 20)
        began = time.perf_counter_ns()
        loop(bus, batch, optimizer, ITERATIONS)
        took = time.perf_counter_ns() - began
        assert run.steps_done == ITERATIONS + 20
    return took / ITERATIONS / 1000


def loop(
    bus: HookBus, batch: object, optimizer: torch.optim.Optimizer | None, iterations: int, outputs: object = None
) -> None:
    """The events of iterations, and updates that change nothing."""
    for i in range(iterations):
        bus.emit("before_train_iter", batch_idx=i, batch=batch)
        bus.emit("after_forward", batch_idx=i, batch=batch)
        bus.emit("after_backward", batch_idx=i, batch=batch)
        if optimizer is not None:
            optimizer.step()
        bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs=outputs)


def one_record(settings: dict[str, object]) -> float:
    """Milliseconds per record of pictures."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    images = torch.rand(16, 3, 64, 64)
    corners = torch.rand(16, 10, 2) * 40
    boxes = [{"boxes": torch.cat([each, each + 20], 1), "labels": torch.arange(10)} for each in corners]
    shown: dict[object, object] = {"det_visualization": boxes, "seg_visualization": torch.randint(0, 9, (16, 64, 64))}
    said = shown.get(settings["type"], model(images).detach())
    truth = shown.get(settings["type"], torch.arange(16) % 10)
    with HookBus([build_hook(settings)]).run(model=model, iterations=NEVER) as run:
        loop(run.bus, (images, truth), None, 1, {"output": said})
        began = time.perf_counter_ns()
        loop(run.bus, (images, truth), None, RECORDS, {"output": said})
        return (time.perf_counter_ns() - began) / RECORDS / 1e6


def measured(rounds: int, run: Callable[[dict[str, object] | None], float]) -> dict[tuple[str, str], float]:
    """By hook and state, the median over rounds of what it adds to a run without it just before."""
    added: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for (hook, state), settings in _cases():
            without = run(None)
            added.setdefault((hook, state), []).append(run(settings) - without)
    return {case: statistics.median(each) for case, each in added.items()}


def _cases() -> Iterator[tuple[tuple[str, str], dict[str, object] | None]]:
    yield ("nothing, again", "off"), None
    for hook, states in CASES.items():
        for state, settings in {"off": OFF, **states}.items():
            yield (hook, state), {"type": hook, **settings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    torch.set_num_threads(1)
    logging.getLogger("hookbus").setLevel(logging.ERROR)
    found = measured(parser.parse_args().rounds, one_round)
    rows = [[hook, state, f"{us:.1f}", f"{us / STEP:.4f}"] for (hook, state), us in found.items()]
    print_table("One iteration, watched", ["observer", "state", "added us", "of a 1 ms step"], rows)
    pictures = {name: min(one_record(settings) for _ in range(3)) for name, settings in PICTURES.items()}
    print_table("A record of pictures", ["what", "ms"], [[name, f"{ms:.1f}"] for name, ms in pictures.items()])
    report("pictures", **{name: round(ms, 1) for name, ms in pictures.items()})
    report("observers", **{f"{hook} {state}": round(us / STEP, 4) for (hook, state), us in found.items()})


if __name__ == "__main__":
    main()
