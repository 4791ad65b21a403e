"""Requests of hooks, and their processing after an event in a fixed order."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus
from hookbus._run.requests import BOUNDARIES, VALIDATION_POINTS, Request, RequestKind, RequestQueue
from hookbus._run.run import Run
from hookbus.errors import HookWarning, LoopError, RequestError
from hookbus.lifecycle import POINTS
from hookbus.metrics.results import Metrics
from hookbus.testing import RecordingBus, fake_training


class FakeSaver:
    """Saver that records its calls and writes nothing."""

    def __init__(self, log: list[str], name: str = "saver", result: bool | None = False) -> None:
        self.log, self.name, self.result = log, name, result

    def plan(self, run: Any, requests: list[Request]) -> Path | None:
        self.log.append(f"{self.name} plans {', '.join(map(str, requests))} at step {run.steps_done}")
        return None if "skip" in self.name else Path(f"{self.name}.pth")

    def write(self, run: Any, checkpoint: dict[str, Any]) -> bool | None:
        self.log.append(f"{self.name} writes")
        return self.result


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def bus() -> Any:
    return RecordingBus()


def requesting_hook(
    point: str, make_request: Callable[[Any], None], name: str = "requester", at: int | None = None
) -> Hook:
    """Return a hook that makes a request at a point, once or at one iteration."""
    calls: list[int] = []

    def listener(self: Hook, run: Any) -> None:
        if not calls and at in (None, run.iters_done):
            calls.append(run.iters_done)
            make_request(run)

    return type("RequestingHook", (Hook,), {point: listener})(name=name)


def iterate(bus: Any, iterations: int) -> None:
    for i in range(iterations):
        bus.emit("before_train_iter", batch_idx=i)
        bus.emit("after_train_iter", batch_idx=i, outputs={"loss": float(i + 1)})


# -- the queue -------------------------------------------------------------------------------------------------


def request(kind: RequestKind, by: str) -> Request:
    return Request(kind, by, "why", 0, 0, 0)


def test_requests_of_one_type_are_taken_sorted_by_requester() -> None:
    queue = RequestQueue()
    assert not queue
    stops, save = [request(RequestKind.STOP, name) for name in "bca"], request(RequestKind.SAVE, "a")
    for pending in (stops[0], save, *stops[1:]):
        queue.waiting.append(pending)
    assert queue
    assert queue.take(RequestKind.STOP) == [stops[2], stops[0], stops[1]]
    assert queue.take(RequestKind.STOP) == []
    assert queue.waiting == [save]
    assert list(queue.history) == [stops[2], stops[0], stops[1]]


def test_pending_requests_can_be_dropped() -> None:
    queue = RequestQueue()
    waiting = [request(RequestKind.STOP, "b"), request(RequestKind.SAVE, "b"), request(RequestKind.VALIDATE, "a")]
    for pending in waiting:
        queue.waiting.append(pending)
    assert queue.drop() == [waiting[2], waiting[1], waiting[0]]
    assert not queue
    assert list(queue.history) == []


def test_request_is_formatted_as_requester_and_reason() -> None:
    assert str(request(RequestKind.STOP, "early_stopping")) == "early_stopping: why"
    assert str(Request(RequestKind.STOP, "loop", "", 0, 0, 0)) == "loop"


def test_requests_are_processed_at_points_of_the_lifecycle() -> None:
    assert set(POINTS) > VALIDATION_POINTS > BOUNDARIES
    assert {"before_train", "after_train_epoch"} == VALIDATION_POINTS - BOUNDARIES


# -- requester, reason and counts ------------------------------------------------------------------------------


def test_request_contains_requester_reason_and_counts(bus: Any) -> None:
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop("enough", outcome="preempted"), at=3))
    with bus.run() as run:
        bus.emit("before_train_epoch")
        iterate(bus, 3)
    (stop,) = run.stops
    assert stop == Request(RequestKind.STOP, "requester", "enough", 0, 2, 3, {"outcome": "preempted"})
    assert list(run.queue.history) == [stop]
    assert run.outcome == "preempted"


def test_requester_is_the_function_hook_thread_or_loop(bus: Any) -> None:
    make_request: Callable[[Any], None] = lambda run: run.request_stop()  # noqa: E731
    bus.on("before_train", name="function")(lambda run: make_request(run))

    class Outer(Hook):
        def before_epoch(self, run: Any) -> None:
            run.bus.emit("log_text")
            make_request(run)

    class InnerHook(Hook):
        def log_text(self, run: Any) -> None:
            make_request(run)

    class Background(Hook):
        def before_train_epoch(self, run: Any) -> None:
            thread = threading.Thread(target=self.work, args=(run,))
            thread.start()
            thread.join()

        def work(self, run: Any) -> None:
            make_request(run)

    for hook in (Outer(), InnerHook(), Background()):
        bus.register(hook)
    run = bus.current
    for point in ("before_train", "before_epoch", "before_train_epoch"):
        bus.fire(point)
    make_request(run)
    requesters = [pending.requested_by for pending in (*run.stops, *run.queue.waiting)]
    assert requesters == ["function", "inner", "outer", "background", "loop"]


# -- boundaries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [point for point in POINTS if "train" in point and point not in ("before_train",)])
def test_stop_request_is_processed_at_the_next_boundary(bus: Any, point: str) -> None:
    bus.register(requesting_hook(point, lambda run: run.request_stop("enough")))
    run = bus.current
    bus.fire(point)
    assert bool(run.stops) == (point in BOUNDARIES)
    bus.fire("after_train_iter")
    assert len(run.stops) == 1


def test_stop_request_of_the_loop_is_processed_by_settle(bus: Any) -> None:
    with bus.run() as run:
        bus.emit("before_train_epoch")
        run.request_stop("enough")
        assert (run.should_stop, run.stops) == (False, [])
        run.settle()
        assert (run.should_stop, run.stop_reasons) == (True, ["loop: enough"])


def test_settling_emits_no_event_and_advances_no_count() -> None:
    bus = RecordingBus()
    with bus.run(epochs=3) as run:
        bus.emit("before_train_epoch")
        bus.emit("after_train_iter")
        before = (list(bus.emitted_points), run.iters_done, run.steps_done, run.epochs_done, run.epoch_open)
        run.settle()
        assert (bus.emitted_points, run.iters_done, run.steps_done, run.epochs_done, run.epoch_open) == before


@pytest.mark.parametrize(
    ("place", "point"), [("within an iteration", "before_train_iter"), ("within a validation", "before_val")]
)
def test_settling_between_two_events_raises_an_error(place: str, point: str) -> None:
    bus = HookBus()
    with bus.run() as run:
        bus.emit(point)
        with pytest.raises(
            LoopError, match=f"run.settle: called {place}, at iteration 1, epoch 1. Call it in the loop"
        ):
            run.settle()


def test_settling_within_an_event_raises_an_error() -> None:
    bus = HookBus()
    bus.on("after_train_iter")(lambda run: run.settle())
    with bus.run(), pytest.raises(LoopError, match="run.settle: called within after_train_iter, at iteration 1"):
        bus.emit("after_train_iter")


class TestValidationOfTheLoop:
    def test_stop_requested_in_it_is_known_before_the_next_epoch(self, bus: Any) -> None:
        bus.on("after_val")(lambda run: run.request_stop("no progress"))
        with bus.run(epochs=3) as run:
            bus.emit("before_train_epoch")
            bus.emit("after_train_iter")
            bus.emit("after_train_epoch")
            bus.emit("before_val")
            bus.emit("after_val")
            assert (run.should_stop, run.epochs_done) == (True, 1)

    def test_requests_within_an_iteration_are_left_to_its_end(self, bus: Any) -> None:
        bus.on("after_val")(lambda run: run.request_stop("no progress"))
        with bus.run(epochs=3) as run:
            for point, is_stopped in (("before_train_iter", False), ("before_val", False), ("after_val", False)):
                bus.emit(point)
                assert run.should_stop == is_stopped
            bus.emit("after_train_iter")
            assert run.should_stop

    def test_validation_of_the_run_processes_requests_at_the_boundary_only(self, bus: Any) -> None:
        seen: list[bool] = []

        def request_stop(run: Run) -> None:
            run.request_stop("no progress")

        bus.on("after_val")(request_stop)
        with bus.run(epochs=3, validate=lambda: {"loss": 1.0}) as run:
            bus.emit("before_train_iter")
            run.validate()
            seen.append(run.should_stop)
            bus.emit("after_train_iter")
            seen.append(run.should_stop)
        assert seen == [False, True]


def test_nested_event_processes_no_requests(bus: Any) -> None:
    seen: list[int] = []

    class Outer(Hook):
        def after_train_iter(self, run: Any) -> None:
            run.request_stop("outer")
            run.bus.fire("after_epoch")
            seen.append(len(run.stops))

    bus.register(Outer())
    bus.register(requesting_hook("after_epoch", lambda run: run.request_stop("inner"), name="inner"))
    bus.fire("after_train_iter")
    assert seen == [0]
    assert bus.current.stop_reasons == ["inner: inner", "outer: outer"]


def test_run_inside_a_listener_of_another_bus_processes_its_requests(bus: Any) -> None:
    inner: Any = HookBus([requesting_hook("after_train_iter", lambda run: run.request_stop("inner"), name="inner")])
    seen: list[list[str]] = []

    @bus.on("before_train")
    def train_inside(run: Any) -> None:
        with inner.run(iterations=5) as inner_run:
            inner.emit("after_train_iter")
            seen.append(inner_run.stop_reasons)

    bus.fire("before_train")
    assert seen == [["inner: inner"]]


def test_stop_reasons_are_sorted_by_name(bus: Any) -> None:
    for name in ("c", "a", "b"):
        bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop("enough"), name=name))
    bus.fire("after_train_iter")
    assert bus.current.stop_reasons == ["a: enough", "b: enough", "c: enough"]


# -- order of the processing -------------------------------------------------------------------------------------


def iteration_with_four_requests(order: tuple[str, ...], log: list[str]) -> Any:
    """Execute one iteration in which four hooks make requests, registered in a given order."""
    model = nn.Linear(1, 1)
    bus: Any = RecordingBus()
    requests: dict[str, Callable[[Any], None]] = {
        "stop": lambda run: run.request_stop("stop"),
        "save": lambda run: run.request_save("save", saver=saver),
        "validate": lambda run: run.request_validation("validate"),
        "record": lambda run: run.request_record(run.metrics.window("w"), deliver),
    }
    saver = FakeSaver(log)

    def deliver(metrics: Any, step: int) -> None:
        log.append(f"record {dict(metrics)} at step {step}")

    def validate(run: Any) -> dict[str, float]:
        log.append("validates")
        return {"accuracy": 0.5}

    for name in order:
        bus.register(requesting_hook("after_train_iter", requests[name], name=name))
    with bus.run(model=model, validate=validate) as run:
        run.metrics.window("w")
        iterate(bus, 1)
        log.append(f"stopped: {run.should_stop}")
    return bus


@pytest.mark.parametrize("order", list(itertools.permutations(["stop", "save", "validate", "record"])))
def test_records_validations_saves_and_stops_are_processed_in_this_order(
    order: tuple[str, ...], log: list[str]
) -> None:
    bus = iteration_with_four_requests(order, log)
    assert log == [
        "record {'train/loss': 1.0} at step 1",
        "validates",
        "saver plans save: save at step 1",
        "saver writes",
        "stopped: True",
    ]
    assert bus.emitted_points == [
        *("before_run", "before_train", "before_train_iter", "after_train_iter"),
        *("before_val", "before_val_epoch", "after_val_epoch", "after_val"),
        *("before_save_checkpoint", "after_save_checkpoint"),
        *("after_train", "after_run", "cleanup"),
    ]


# -- records -----------------------------------------------------------------------------------------------------


def test_record_is_delivered_at_the_next_step_and_resets_its_window(bus: Any) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    seen: list[tuple[dict[str, float], int]] = []

    class RecordRequests(Hook):
        def after_train_iter(self, run: Any) -> None:
            if run.iters_done in (1, 4):
                run.request_record(run.metrics.window("mine"), lambda metrics, step: seen.append((dict(metrics), step)))

    bus.register(RecordRequests())
    with bus.run(optimizer=optimizer) as run:
        run.metrics.window("mine")
        for i in range(7):
            bus.emit("before_train_iter", batch_idx=i)
            if i % 3 == 2:
                optimizer.step()
            bus.emit("after_train_iter", batch_idx=i, outputs={"loss": float(i + 1)})
        assert seen == [({"train/loss": 2.0}, 1), ({"train/loss": 5.0}, 2)]


def test_pending_record_is_delivered_at_the_end_of_training(bus: Any) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    seen: list[tuple[dict[str, float], int]] = []
    deliver = lambda metrics, step: seen.append((dict(metrics), step))  # noqa: E731
    bus.register(
        requesting_hook("after_train_iter", lambda run: run.request_record(run.metrics.window("mine"), deliver))
    )
    with bus.run(optimizer=optimizer) as run:
        run.metrics.window("mine")
        iterate(bus, 2)
        assert seen == []
    assert seen == [({"train/loss": 1.5}, 0)]


def test_value_logged_during_a_delivery_belongs_to_the_next_record(bus: Any) -> None:
    seen: dict[str, list[dict[str, float]]] = {"a": [], "b": []}

    class RecordRequests(Hook):
        def before_train(self, run: Any) -> None:
            run.metrics.window(self.name)

        def after_train_iter(self, run: Any) -> None:
            run.request_record(run.metrics.window(self.name), self.deliver)

        def deliver(self, metrics: Metrics, step: int) -> None:
            seen[self.name].append(dict(metrics))
            if self.name == "a" and step == 1:
                self.run.log(delivered=7.0)

    bus.register(RecordRequests(name="a")), bus.register(RecordRequests(name="b"))
    with bus.run():
        iterate(bus, 2)

    assert seen["a"] == seen["b"]
    assert [metrics.get("train/delivered") for metrics in seen["a"]] == [None, 7.0]


# -- validations -------------------------------------------------------------------------------------------------


def test_one_validation_is_executed_for_all_requests(bus: Any) -> None:
    steps: list[int] = []
    for name in "ab":
        bus.register(requesting_hook("after_train_iter", lambda run: run.request_validation(), name=name))
    with bus.run(validate=lambda run: steps.append(run.steps_done)) as run:
        iterate(bus, 2)
    assert steps == [1]
    assert [processed.requested_by for processed in run.queue.history] == ["a", "b"]


def test_validation_is_not_repeated_without_an_optimizer_step(bus: Any) -> None:
    steps: list[int] = []
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    bus.on("after_train_iter")(lambda run: run.request_validation())
    with bus.run(optimizer=optimizer, validate=lambda run: steps.append(run.iters_done)):
        for i in range(6):
            bus.emit("before_train_iter", batch_idx=i)
            if i in (2, 3):
                optimizer.step()
            bus.emit("after_train_iter", batch_idx=i)
    assert steps == [1, 3, 4]


@pytest.mark.parametrize(("at", "validated"), [(1, []), (4, [3]), (6, [3, 6])])
@pytest.mark.parametrize("first", [True, False])
def test_epoch_truncated_by_a_stop_is_not_validated(bus: Any, at: int, validated: list[int], first: bool) -> None:
    # The loop requests a validation after its batches, before or after it emits the end of the epoch.
    steps: list[int] = []
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop(), at=at))
    with bus.run(epochs=3, validate=lambda run: steps.append(run.iters_done)) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, _ in run.batches(range(3)):
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_train_iter", batch_idx=i)
            if first:
                run.request_validation()
            bus.emit("after_train_epoch")
            if not first:
                run.request_validation()
    assert steps == validated


def test_stopped_training_may_be_validated_at_its_end(bus: Any) -> None:
    steps: list[int] = []
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop(), at=4))
    bus.on("after_train")(lambda run: run.request_validation())
    with bus.run(epochs=3, validate=lambda run: steps.append(run.iters_done)) as run:
        for _ in run.epochs():
            for i, _ in run.batches(range(3)):
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_train_iter", batch_idx=i)
    assert steps == [4]


def test_validation_before_training_is_a_sanity_check(bus: Any) -> None:
    sanity: list[bool] = []
    bus.register(requesting_hook("before_train", lambda run: run.request_validation("sanity")))

    def validate(run: Any) -> dict[str, float]:
        sanity.append(run.sanity_checking)
        return {"accuracy": 0.99 if run.sanity_checking else 0.5}

    with bus.run(validate=validate) as run:
        bus.emit("before_train_iter")
        assert dict(run.metrics.results) == {}
        assert run.validations.validated_at == -1
        run.request_validation("real")
        bus.emit("after_train_iter")
    assert sanity == [True, False]
    assert dict(run.metrics.results) == {"val/accuracy": 0.5}
    assert not run.sanity_checking


def test_requests_during_a_validation_are_queued_except_for_validations(bus: Any, log: list[str]) -> None:
    saver, errors = FakeSaver(log), []

    class ValidationRequests(Hook):
        def after_val_epoch(self, run: Any) -> None:
            run.request_save("better", saver=saver)
            run.request_stop("good enough")
            log.append(f"saved {len(log)}, stopped {len(run.stops)}")
            try:
                run.request_validation()
            except RequestError as error:
                errors.append(str(error))

    bus.register(ValidationRequests(name="evaluator"))
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_validation()))
    with bus.run(model=nn.Linear(1, 1), validate=lambda: {"accuracy": 0.5}) as run:
        iterate(bus, 1)
        assert run.stop_reasons == ["evaluator: good enough"]
    assert log == ["saved 0, stopped 0", "saver plans evaluator: better at step 1", "saver writes"]
    assert errors == ["evaluator requested a validation during a validation. Request it after `after_val`."]


def test_validation_request_without_a_function_raises(bus: Any) -> None:
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_validation()))
    with (
        pytest.raises(RequestError, match="The run has no validation function. Pass .*, or validate= to bus.run"),
        bus.run(),
    ):
        iterate(bus, 1)


# -- saves -------------------------------------------------------------------------------------------------------


def test_saves_of_one_boundary_are_one_per_saver(bus: Any, log: list[str]) -> None:
    own, other = FakeSaver(log, "own"), FakeSaver(log, "other", result=True)
    for name, saver in (("c", own), ("a", other), ("b", own)):
        bus.register(requesting_hook("after_train_iter", save_request(saver), name=name))
    with bus.run(model=nn.Linear(1, 1)) as run:
        iterate(bus, 2)
    assert log == [
        "other plans a: x at step 1",
        "other writes",
        "own plans b: x, c: x at step 1",
        "own writes",
    ]
    assert [dict(arguments) for arguments in bus.get_arguments("after_save_checkpoint")] == [
        {"path": Path("other.pth"), "is_best": True, "metrics": run.metrics.results},
        {"path": Path("own.pth"), "is_best": False, "metrics": run.metrics.results},
    ]


def save_request(saver: FakeSaver | None = None, reason: str = "x", **details: Any) -> Callable[[Any], None]:
    return lambda run: run.request_save(reason, saver=saver, **details)


def test_checkpoint_may_be_modified_before_it_is_written(bus: Any, log: list[str]) -> None:
    written: list[dict[str, Any]] = []

    class Saver(FakeSaver):
        def write(self, run: Any, checkpoint: dict[str, Any]) -> bool | None:
            written.append(checkpoint)
            return False

    bus.on("before_save_checkpoint")(lambda checkpoint: checkpoint.update(note="mine"))
    bus.register(requesting_hook("after_train_iter", save_request(Saver(log))))
    with bus.run(model=nn.Linear(1, 1)):
        iterate(bus, 1)
    assert written[0]["note"] == "mine"
    assert set(written[0]["state_dict"]) == {"weight", "bias"}


@pytest.mark.parametrize(
    ("name", "result", "events"), [("skip", False, []), ("failing", None, ["before_save_checkpoint"])]
)
def test_skipped_or_failed_save_emits_no_after_save_checkpoint(
    bus: Any, log: list[str], name: str, result: bool | None, events: list[str]
) -> None:
    bus.register(requesting_hook("after_train_iter", save_request(FakeSaver(log, name, result))))
    with bus.run(model=nn.Linear(1, 1)):
        iterate(bus, 1)
    assert [point for point in bus.emitted_points if "checkpoint" in point] == events


def test_save_request_uses_the_saver_of_the_run_by_default(bus: Any, log: list[str]) -> None:
    bus.register(requesting_hook("after_train_iter", save_request(reason="last")))
    with bus.run(model=nn.Linear(1, 1)) as run:
        run.provide("checkpoint_saver", FakeSaver(log))
        iterate(bus, 1)
    assert log[0] == "saver plans requester: last at step 1"


def test_save_request_without_a_saver_raises(bus: Any) -> None:
    bus.register(requesting_hook("after_train_iter", save_request()))
    with (
        pytest.raises(RequestError, match="requester requested a checkpoint, but no hook writes checkpoints"),
        bus.run(),
    ):
        iterate(bus, 1)


def test_stop_request_after_a_save_is_processed_at_the_same_boundary(bus: Any, log: list[str]) -> None:
    bus.register(requesting_hook("after_train_iter", save_request(FakeSaver(log))))
    bus.register(requesting_hook("after_save_checkpoint", lambda run: run.request_stop("saved"), name="stop_request"))
    with bus.run(model=nn.Linear(1, 1)) as run:
        iterate(bus, 1)
        assert run.stop_reasons == ["stop_request: saved"]


def test_requests_at_the_end_of_training_are_processed_before_the_run_ends(bus: Any, log: list[str]) -> None:
    bus.register(requesting_hook("after_train", save_request(FakeSaver(log, "first")), name="a"))
    bus.register(requesting_hook("after_run", save_request(FakeSaver(log, "second")), name="b"))
    with bus.run(model=nn.Linear(1, 1)):
        iterate(bus, 1)
    assert log == ["first plans a: x at step 1", "first writes", "second plans b: x at step 1", "second writes"]


# -- stops, skips and failures -----------------------------------------------------------------------------------


def test_requests_of_a_failed_run_are_dropped_with_a_warning(
    bus: Any, log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Requester(Hook):
        def before_train_iter(self, run: Any) -> None:
            run.request_save("periodic", saver=FakeSaver(log))
            run.request_stop()
            run.request_record(run.metrics.window("w"), lambda metrics, step: log.append("delivered"))

        def after_train_iter(self) -> None:
            raise ValueError("no")

    bus.register(Requester())
    with pytest.raises(ValueError, match="no"), caplog.at_level(logging.WARNING), bus.run():
        iterate(bus, 1)
    assert log == []
    assert [record.getMessage() for record in caplog.records] == [
        "The run ended before a request was processed: save, requested by requester: periodic",
        "The run ended before a request was processed: stop, requested by requester",
    ]


def test_skipped_iteration_is_in_the_history_and_is_counted(bus: Any) -> None:
    bus.register(requesting_hook("before_train_iter", lambda run: run.request_skip_iter("bad batch"), at=1))
    skipped = []
    with bus.run() as run:
        for i in range(3):
            bus.emit("before_train_iter", batch_idx=i)
            skipped.append(run.should_skip_iter)
            bus.emit("after_train_iter", batch_idx=i)
    assert skipped == [False, True, False]
    (request,) = run.queue.history
    assert (request.kind, request.requested_by, request.reason, request.iteration) == (
        RequestKind.SKIP_ITER,
        "requester",
        "bad batch",
        1,
    )
    assert run.iters_done == 3


def train(bus: Any, epochs: int, batches: int) -> Any:
    with bus.run(epochs=epochs) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, _ in run.batches(range(batches)):
                bus.emit("after_train_iter", batch_idx=i)
            bus.emit("after_train_epoch")
    return run


def test_epoch_ended_by_a_request_counts_and_the_next_one_begins(bus: Any) -> None:
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop_epoch("seen enough"), at=12))
    run = train(bus, epochs=3, batches=10)
    assert (run.iters_done, run.epochs_done, run.epoch_complete) == (22, 3, True)
    assert [arguments["epoch"] for arguments in bus.get_arguments("after_epoch")] == [0, 1, 2]


def test_epoch_does_not_count_if_the_run_is_stopped_as_well(bus: Any) -> None:
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop_epoch(), name="a", at=12))
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop(), name="b", at=12))
    run = train(bus, epochs=3, batches=10)
    assert (run.iters_done, run.epochs_done, run.epoch_complete) == (12, 1, False)


def test_stop_after_the_last_batch_completes_the_epoch(bus: Any) -> None:
    bus.register(requesting_hook("after_train_iter", lambda run: run.request_stop(), at=20))
    run = train(bus, epochs=3, batches=10)
    assert (run.iters_done, run.epochs_done, run.epoch_complete) == (20, 2, True)


@pytest.mark.parametrize(
    ("outcomes", "outcome"),
    [
        (["stopped"], "stopped"),
        (["stopped", "preempted"], "preempted"),
        (["preempted", "stopped", "interrupted"], "interrupted"),
    ],
)
def test_outcome_is_that_of_the_strongest_stop_request(bus: Any, outcomes: list[str], outcome: str) -> None:
    for name in outcomes:
        bus.register(requesting_hook("after_train_iter", stop_request(name), name=name))
    with contextlib.suppress(KeyboardInterrupt), bus.run() as run:
        iterate(bus, 1)
    assert run.outcome == outcome


def stop_request(outcome: Any) -> Callable[[Any], None]:
    return lambda run: run.request_stop(outcome=outcome)


class FailingWriter(Hook):
    observer = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.written = 0

    def after_train_iter(self, run: Run) -> None:
        run.request_record(run.metrics.window("w"), self.deliver)

    def deliver(self, metrics: Metrics, step: int) -> None:
        self.written += 1
        raise ConnectionError("gone")


class TestFailureOfRequestedWork:
    def test_failing_observer_warns_and_is_disabled_after_three_failures(self) -> None:
        hook = FailingWriter()
        with pytest.warns(HookWarning) as warned:
            fake_training([hook], epochs=1, batches=5)
        assert hook.written == 3
        first, last = (str(warning.message) for warning in warned)
        assert "failed at the requested record: ConnectionError: gone. Training continues." in first
        assert "failed 3 times, disabled since epoch 1, iteration 3" in last

    def test_failing_hook_with_on_error_raise_ends_the_run_and_is_named(self) -> None:
        bus = HookBus([FailingWriter(on_error="raise")])
        with pytest.raises(ConnectionError) as raised, bus.run():
            bus.emit("after_train_iter", outputs={"loss": 1.0})
        (note,) = raised.value.__notes__
        assert note.startswith("raised by hook 'failing_writer' (")
        assert note.endswith("at the requested record, epoch 1, iteration 1")

    def test_failing_saver_with_on_error_warn_warns(self) -> None:
        class FailingSaver(Hook):
            def before_run(self, run: Run) -> None:
                run.provide("checkpoint_saver", self)

            def after_train_iter(self, run: Run) -> None:
                run.request_save(saver=self)

            def plan(self, run: Run, requests: list[Request]) -> Path:
                return Path("x.pth")

            def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
                raise OSError("full")

        bus = HookBus([FailingSaver(on_error="warn")])
        with (
            pytest.warns(HookWarning, match=r"hook 'failing_saver' .* failed at a save: OSError: full"),
            bus.run() as run,
        ):
            bus.emit("after_train_iter", outputs={"loss": 1.0})
        assert run.outcome == "finished"
