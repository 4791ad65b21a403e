"""Rows of events, filters, counters and requests: each in a training with a handler and a hook that record the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("ignite", reason="ignite is not installed: run `make bridges HOST=ignite`")

from ignite.engine import Engine, EventEnum, Events

from hookbus import Hook, HookBus, Run, every, hookimpl, once

from .migration import covers
from .toys import Toy, pairs

Call = tuple[str, int]
"""Name of an event or a point, and the number of optimizer steps when it is called."""

STEPS: dict[str, list[Call]] = {
    "training": [("before_train", 0), ("after_train", 4)],
    "epochs": [("before_epoch", 0), ("after_epoch", 2), ("before_epoch", 2), ("after_epoch", 4)],
    "iterations": [
        *(("before_train_iter", 0), ("after_train_iter", 0), ("before_train_iter", 0), ("after_train_iter", 1)),
        *(("before_train_iter", 1), ("after_train_iter", 1), ("before_train_iter", 1), ("after_train_iter", 2)),
        *(("before_train_iter", 2), ("after_train_iter", 2), ("before_train_iter", 2), ("after_train_iter", 3)),
        *(("before_train_iter", 3), ("after_train_iter", 3), ("before_train_iter", 3), ("after_train_iter", 4)),
    ],
    "validations": [("after_val", 2), ("after_val", 4)],
}
"""Calls in 2 epochs of 4 batches, with an optimizer step every 2 batches."""

POINTS = {
    Events.STARTED: "before_train",
    Events.COMPLETED: "after_train",
    Events.EPOCH_STARTED: "before_epoch",
    Events.EPOCH_COMPLETED: "after_epoch",
    Events.ITERATION_STARTED: "before_train_iter",
    Events.ITERATION_COMPLETED: "after_train_iter",
}


class CountedToy(Toy):
    """Toy with an optimizer step every 2 batches, which counts the steps itself."""

    def __init__(self) -> None:
        super().__init__([1.0, 2.0, 4.0, 8.0], gradient_accumulation_steps=2)
        self.steps = 0
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.steps += 1


def record_at(bus: HookBus, points: Sequence[str], toy: CountedToy) -> list[Call]:
    """Return the list of calls at points, which a training extends."""
    calls: list[Call] = []

    def listen(point: str) -> Callable[[], None]:
        return lambda: calls.append((point, toy.steps))

    for point in points:
        bus.on(point, name=f"record_{point}")(listen(point))
    return calls


def _compare(events: Sequence[Events], kind: str) -> None:
    toy, bus = CountedToy(), HookBus()
    native: list[Call] = []
    for event in events:
        toy.trainer.add_event_handler(event, lambda engine, name: native.append((name, toy.steps)), POINTS[event])
    toy.attach(bus)
    recorded = record_at(bus, [POINTS[event] for event in events], toy)
    toy.trainer.run(toy.data, max_epochs=2)
    assert native == STEPS[kind]
    assert recorded == STEPS[kind]


@covers("`Events.STARTED`, `Events.COMPLETED`", "`before_train`, `after_train`")
def test_start_and_end_of_the_training() -> None:
    _compare([Events.STARTED, Events.COMPLETED], "training")


@covers("`Events.EPOCH_STARTED`, `Events.EPOCH_COMPLETED`", "`before_epoch`, `after_epoch`")
def test_start_and_end_of_epochs() -> None:
    _compare([Events.EPOCH_STARTED, Events.EPOCH_COMPLETED], "epochs")


@covers("`Events.ITERATION_STARTED`, `Events.ITERATION_COMPLETED`", "`before_train_iter`, `after_train_iter`")
def test_start_and_end_of_iterations() -> None:
    _compare([Events.ITERATION_STARTED, Events.ITERATION_COMPLETED], "iterations")


@covers("`Events.EXCEPTION_RAISED`", "`on_exception`, once, and only if the exception ends the training")
def test_exception() -> None:
    toy, bus = CountedToy(), HookBus()
    native: list[tuple[BaseException, int]] = []
    recorded: list[tuple[BaseException, int]] = []

    @toy.trainer.on(Events.EXCEPTION_RAISED)
    def reraise(engine: Engine, error: BaseException) -> None:
        native.append((error, toy.steps))
        raise error

    toy.attach(bus)
    bus.on("on_exception")(lambda exception: recorded.append((exception, toy.steps)))
    toy.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), lambda engine: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        toy.trainer.run(toy.data)
    assert native == [(caught.value, 1)] * 2  # for the iteration, and for the run
    assert recorded == [(caught.value, 1)]


@covers("an evaluator's `Events.COMPLETED`", "`after_val`")
def test_end_of_a_validation() -> None:
    toy, bus = CountedToy(), HookBus()
    native: list[tuple[float, Call]] = []
    recorded: list[tuple[float, Call]] = []
    toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: toy.evaluator.run(pairs([4.0])))
    toy.evaluator.add_event_handler(
        Events.COMPLETED, lambda engine: native.append((engine.state.metrics["error"], ("after_val", toy.steps)))
    )
    toy.attach(bus, evaluators={"val": toy.evaluator})
    bus.on("after_val")(lambda metrics: recorded.append((metrics["val/error"], ("after_val", toy.steps))))
    toy.trainer.run(toy.data, max_epochs=2)
    # Each epoch subtracts (1 + 2) / 2 + (4 + 8) / 2 from the weight; the error is |4 * weight|.
    assert native == list(zip([30.0, 60.0], STEPS["validations"], strict=True))
    assert recorded == native


class FilteredHook(Hook):
    """Record the iterations and epochs at which its schedules are due."""

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[int] = []
        self.epochs: list[int] = []
        self.once: list[int] = []

    @hookimpl(when=every(50))
    def after_train_iter(self, run: Run) -> None:
        self.iterations.append(run.iters_done)

    @hookimpl(when=every(2))
    def after_epoch(self, run: Run) -> None:
        self.epochs.append(run.epochs_done)

    @hookimpl(when=once(3))
    def before_train_iter(self, run: Run) -> None:
        self.once.append(run.iter + 1)


@covers("`(every=50)`, `(once=3)`", "`when=every(50)`, `when=once(3)`")
def test_filters_of_events() -> None:
    toy, hook = Toy([1.0] * 30), FilteredHook()
    native: dict[str, list[int]] = {"iterations": [], "epochs": [], "once": []}
    for event, name, count in (
        (Events.ITERATION_COMPLETED(every=50), "iterations", "iteration"),
        (Events.EPOCH_COMPLETED(every=2), "epochs", "epoch"),
        (Events.ITERATION_STARTED(once=3), "once", "iteration"),
    ):
        toy.trainer.add_event_handler(
            event, lambda engine, name, count: native[name].append(getattr(engine.state, count)), name, count
        )
    toy.attach(HookBus([hook]))
    toy.trainer.run(toy.data, max_epochs=4)
    assert native == {"iterations": [50, 100], "epochs": [2, 4], "once": [3]}  # of 120 iterations
    assert {"iterations": hook.iterations, "epochs": hook.epochs, "once": hook.once} == native


@covers("`(event_filter=f)`", "`when=lambda run: ...`; `when=every(0.1)` is due ten times in the run")
def test_filters_by_a_function() -> None:
    toy, bus = Toy([1.0] * 30), HookBus()
    native: list[int] = []
    recorded: list[int] = []
    tenths: list[int] = []
    toy.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(event_filter=lambda engine, event: event % 40 == 7),
        lambda engine: native.append(engine.state.iteration),
    )
    bus.on("after_train_iter", when=lambda run: run.iters_done % 40 == 7)(lambda run: recorded.append(run.iters_done))
    bus.on("after_train_iter", when=every(0.1), name="tenths")(lambda run: tenths.append(run.iters_done))
    toy.attach(bus)
    toy.trainer.run(toy.data, max_epochs=4)
    assert native == recorded == [7, 47, 87]
    assert tenths == list(range(12, 121, 12))


class BackwardEvents(EventEnum):
    """Event of the test."""

    BACKWARD_STARTED = "backward_started"


@covers("`engine.register_events`, `engine.fire_event`", "`bus.declare` and the function that it returns")
def test_events_of_the_user() -> None:
    toy, bus = Toy(), HookBus()
    native: list[float] = []
    recorded: list[float] = []

    def update(engine: Engine, batch: Any) -> torch.Tensor:
        loss = batch[0].sum()
        engine.state.own_loss = loss
        engine.fire_event(BackwardEvents.BACKWARD_STARTED)
        emit(value=loss)
        return loss

    trainer = Engine(update)
    trainer.register_events(*BackwardEvents)
    trainer.add_event_handler(
        BackwardEvents.BACKWARD_STARTED, lambda engine: native.append(float(engine.state.own_loss))
    )
    emit = bus.declare("before_backward", args=("value",))
    bus.on("before_backward")(lambda value: recorded.append(float(value)))
    trainer.run(toy.data, max_epochs=2)
    assert native == [1.0, 2.0, 1.0, 2.0]
    assert recorded == native


Counts = tuple[str, int, int]
"""Name of a point, iteration and epoch, both from 1."""


@covers(
    "`engine.state.iteration`, `engine.state.epoch`",
    "`run.iter + 1`, `run.epoch + 1`; after the iteration or the epoch also `run.iters_done`, `run.epochs_done`",
)
def test_counters() -> None:
    toy, bus = Toy([1.0, 2.0, 4.0]), HookBus()
    native: list[Counts] = []
    current: list[Counts] = []
    done: list[Counts] = []

    def record(engine: Engine, point: str) -> None:
        native.append((point, engine.state.iteration, engine.state.epoch))

    events = (Events.ITERATION_STARTED, Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED)
    for event in events:
        toy.trainer.add_event_handler(event, record, POINTS[event])
    toy.attach(bus)
    for event in events:
        bus.on(POINTS[event], name=POINTS[event])(_record_counters(POINTS[event], current, done))
    toy.trainer.run(toy.data, max_epochs=2)
    epoch = [("before_train_iter", i, 1) if half else ("after_train_iter", i, 1) for i in (1, 2, 3) for half in (1, 0)]
    assert native == [
        *epoch,
        ("after_epoch", 3, 1),
        *((point, iteration + 3, 2) for point, iteration, _ in epoch),
        ("after_epoch", 6, 2),
    ]
    assert current == native
    # An epoch in progress is not done, and neither is an iteration.
    assert done == [
        (point, iteration - (point == "before_train_iter"), epoch - (point != "after_epoch"))
        for point, iteration, epoch in native
    ]


def _record_counters(point: str, current: list[Counts], done: list[Counts]) -> Callable[[Run], None]:
    def record(run: Run) -> None:
        current.append((point, run.iter + 1, run.epoch + 1))
        done.append((point, run.iters_done, run.epochs_done))

    return record


@covers("`engine.terminate()`, `engine.terminate_epoch()`", "`run.request_stop()`, `run.request_stop_epoch()`")
@pytest.mark.parametrize(
    ("native", "request_end", "iterations", "epochs", "validations", "weight"),
    [
        # Iterations 1 to 4 of 3 epochs of 3 batches; the epoch that is truncated is not validated.
        (Engine.terminate, Run.request_stop, 4, 2, [28.0], -8.0),
        # Iterations 1 to 4, and 3 of the third epoch; Ignite counts the truncated epoch and validates it.
        (Engine.terminate_epoch, Run.request_stop_epoch, 7, 3, [28.0, 32.0, 60.0], -15.0),
    ],
)
def test_requests(
    native: Any, request_end: Any, iterations: int, epochs: int, validations: list[float], weight: float
) -> None:
    def train(with_hook: bool) -> tuple[int, int, list[float], float]:
        toy, bus, seen = Toy([1.0, 2.0, 4.0]), HookBus(), list[float]()

        def validate(engine: Engine) -> None:
            seen.append(toy.evaluator.run(pairs([4.0])).metrics["error"])

        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, validate)
        if with_hook:
            bus.on("after_train_iter", when=once(4))(lambda run: request_end(run))
            toy.attach(bus)
        else:
            toy.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=4), native)
        state = toy.trainer.run(toy.data, max_epochs=3)
        return state.iteration, state.epoch, seen, toy.weight

    result = train(with_hook=False)
    assert result == (iterations, epochs, validations, weight)
    assert train(with_hook=True) == result
