"""PyTorch-Ignite. Light: an Engine with a custom step and no handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers import TerminateOnNan, Timer
from ignite.metrics import RunningAverage

from benchmarks.peers.common import Batch, Blocks, adam, compare, compute_loss, model


def listener(engine: Engine) -> None:
    pass


def event(count: int, rarely: bool) -> Callable[[], Any]:
    engine = Engine(lambda engine, batch: None)
    engine.state.iteration = 1
    at = Events.ITERATION_COMPLETED(every=100) if rarely else Events.ITERATION_COMPLETED
    for _ in range(count):
        engine.add_event_handler(at, listener)
    return lambda: engine.fire_event(Events.ITERATION_COMPLETED)


def trainer() -> Engine:
    trained = model()
    optimizer = adam(trained)

    def step(_engine: Engine, batch: Batch) -> float:
        optimizer.zero_grad()
        loss = compute_loss(trained, batch)
        loss.backward()
        optimizer.step()
        return loss.item()  # as in Ignite's `supervised_training_step`

    return Engine(step)


def without_handlers(blocks: Blocks) -> None:
    trainer().run(blocks, max_epochs=1)


def with_handlers(blocks: Blocks) -> None:
    """Train with a running average of the loss, a NaN check and an iteration timer."""
    engine = trainer()
    RunningAverage(output_transform=lambda loss: loss).attach(engine, "loss")
    engine.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    Timer(average=True).attach(engine, resume=Events.ITERATION_STARTED, step=Events.ITERATION_COMPLETED)
    engine.run(blocks, max_epochs=1)


if __name__ == "__main__":
    compare("ignite", event, {"no handlers": without_handlers, "3 handlers": with_handlers})
