"""hookbus in the same terms as its peers: the loop's own path, and a Trainer without hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional

from benchmarks.bench_emit import Listens, ListensNowAndThen, bus_with, through_loop
from benchmarks.peers.common import Blocks, adam, model
from hookbus import Trainer


def event(count: int, rarely: bool) -> Callable[[], Any]:
    bus = bus_with(ListensNowAndThen if rarely else Listens, count)
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
