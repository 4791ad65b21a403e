"""Cost of observers: microseconds per iteration of each observer, off, waiting and active.

A custom loop only emits the points of an iteration, so the added time is the complete cost of the hook. It is shown as
a fraction of a step of one millisecond. Off is `enabled: false`. A record of images, in milliseconds, renders 16 images
of 64x64 pixels; it is neither written nor logged.
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
"""Duration of the reference step, in microseconds."""

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
"""Settings by hook and state; `timing` is the profiler between two traces. Active is at every iteration, except for the
two monitors, which are active at their default intervals.
"""

IMAGES: dict[str, dict[str, object]] = {
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


def measure_iteration(settings: dict[str, object] | None) -> float:
    """Return microseconds per iteration of one run, without its start and end."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch, fixed = torch.ones(4, 8), model(torch.ones(4, 8)).sum()
    fixed.backward()
    bus = HookBus([] if settings is None else [build_hook(settings)])
    with contextlib.redirect_stdout(io.StringIO()), bus.run(model=model, optimizer=optimizer, iterations=NEVER) as run:
        loop(bus, batch, optimizer, 20)
        start = time.perf_counter_ns()
        loop(bus, batch, optimizer, ITERATIONS)
        duration = time.perf_counter_ns() - start
        assert run.steps_done == ITERATIONS + 20
    return duration / ITERATIONS / 1000


def loop(
    bus: HookBus, batch: object, optimizer: torch.optim.Optimizer | None, iterations: int, outputs: object = None
) -> None:
    """Emit the events of iterations, with optimizer steps of learning rate 0."""
    for i in range(iterations):
        bus.emit("before_train_iter", batch_idx=i, batch=batch)
        bus.emit("after_forward", batch_idx=i, batch=batch)
        bus.emit("after_backward", batch_idx=i, batch=batch)
        if optimizer is not None:
            optimizer.step()
        bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs=outputs)


def measure_record(settings: dict[str, object]) -> float:
    """Return milliseconds per record of images."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    images = torch.rand(16, 3, 64, 64)
    corners = torch.rand(16, 10, 2) * 40
    boxes = [{"boxes": torch.cat([corner, corner + 20], 1), "labels": torch.arange(10)} for corner in corners]
    targets: dict[object, object] = {"det_visualization": boxes, "seg_visualization": torch.randint(0, 9, (16, 64, 64))}
    output = targets.get(settings["type"], model(images).detach())
    truth = targets.get(settings["type"], torch.arange(16) % 10)
    bus = HookBus([build_hook(settings)])
    with bus.run(model=model, iterations=NEVER):
        loop(bus, (images, truth), None, 1, {"output": output})
        start = time.perf_counter_ns()
        loop(bus, (images, truth), None, RECORDS, {"output": output})
        return (time.perf_counter_ns() - start) / RECORDS / 1e6


def measure_added(rounds: int, run: Callable[[dict[str, object] | None], float]) -> dict[tuple[str, str], float]:
    """Return the median added time by hook and state, compared with a run without the hook in the same round."""
    added: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for (hook, state), settings in _cases():
            without = run(None)
            added.setdefault((hook, state), []).append(run(settings) - without)
    return {case: statistics.median(values) for case, values in added.items()}


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
    added = measure_added(parser.parse_args().rounds, measure_iteration)
    rows = [[hook, state, f"{us:.1f}", f"{us / STEP:.4f}"] for (hook, state), us in added.items()]
    print_table("One iteration with an observer", ["observer", "state", "added us", "of a 1 ms step"], rows)
    images = {name: min(measure_record(settings) for _ in range(3)) for name, settings in IMAGES.items()}
    print_table("A record of images", ["content", "ms"], [[name, f"{ms:.1f}"] for name, ms in images.items()])
    report("images", **{name: round(ms, 1) for name, ms in images.items()})
    report("observers", **{f"{hook} {state}": round(us / STEP, 4) for (hook, state), us in added.items()})


if __name__ == "__main__":
    main()
