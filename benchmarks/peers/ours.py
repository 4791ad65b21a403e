"""hookbus in the same setup as its peers: the dispatch path of the loop, and a Trainer without hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional

from benchmarks.bench_emit import Listener, ScheduledListener, bus_with, through_loop
from benchmarks.peers.common import Blocks, adam, model
from hookbus import Trainer


def event(count: int, rarely: bool) -> Callable[[], Any]:
    bus = bus_with(ScheduledListener if rarely else Listener, count)
    bus.emit("after_render", step=1, batch=None)  # type: ignore[call-overload]
    return through_loop(bus)


def loop(blocks: Blocks) -> None:
    trained = model()
    Trainer(
        trained,
        adam(trained),
        functional.cross_entropy,
        blocks,
        epochs=1,
        hooks=[],
        default_hooks=False,
        device="cpu",
    ).fit()
