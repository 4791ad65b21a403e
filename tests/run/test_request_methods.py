"""Requests that hooks make of a run."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from hookbus import Hook, HookBus
from hookbus._run.requests import RequestKind
from hookbus._run.run import Run
from hookbus.errors import LoopError, RequestError
from hookbus.testing import RecordingBus


def iterate(bus: HookBus, *batches: Any) -> None:
    for batch in batches:
        bus.emit("before_train_iter", batch=batch)
        bus.emit("after_train_iter", batch=batch)


class MakeRequests(Hook):
    """Hook that makes every request at the end of the first iteration."""

    def before_run(self, run: Run) -> None:
        run.provide("checkpoint_saver", self)

    def plan(self, run: Run, requests: Any) -> None:
        return None

    def before_train_iter(self, run: Run) -> None:
        run.request_skip_iter("no good")

    def after_train_iter(self, run: Run) -> None:
        run.request_validation("how is it")
        run.request_save("for later", color="red")
        run.request_stop_epoch("tired")
        run.request_stop("enough")


class TestRequests:
    def test_history_contains_requester_reason_and_counts_of_each_request(self) -> None:
        bus, seen = HookBus([MakeRequests(name="curious")]), []
        bus.on("after_run", name="end")(lambda run: seen.extend(run.queue.history))
        with bus.run(epochs=1, validate=lambda: {"loss": 0.5}) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                iterate(bus, 1)
        assert [(request.kind, str(request), request.iteration, request.step) for request in seen] == [
            (RequestKind.SKIP_ITER, "curious: no good", 0, 0),
            (RequestKind.VALIDATE, "curious: how is it", 0, 1),
            (RequestKind.SAVE, "curious: for later", 0, 1),
            (RequestKind.STOP_EPOCH, "curious: tired", 0, 1),
            (RequestKind.STOP, "curious: enough", 0, 1),
        ]
        assert seen[2].details == {"saver": bus.hooks["curious"], "color": "red"}
        assert (run.stop_reasons, run.outcome) == (["curious: enough"], "stopped")

    def test_requester_of_an_interrupt_is_ctrl_c_also_within_a_hook(self) -> None:
        class InterruptIteration(Hook):
            def after_train_iter(self, run: Run) -> None:
                run.interrupt()

        bus = HookBus([InterruptIteration()])
        with contextlib.suppress(KeyboardInterrupt), bus.run() as run:
            iterate(bus, 1)
            assert (run.stop_reasons, run.should_stop) == (["Ctrl-C"], True)
        assert run.outcome == "interrupted"

    def test_should_stop_is_true_from_the_next_boundary_on(self) -> None:
        bus, seen = HookBus(), []

        def request_stop_and_check(run: Run) -> None:
            run.request_stop("enough")
            seen.append(run.should_stop)

        bus.on("before_train_iter")(request_stop_and_check)
        with bus.run() as run:
            bus.emit("before_train_iter")
            assert (seen, run.should_stop, run.stops) == ([False], False, [])
            bus.emit("after_train_iter")
            assert (run.should_stop, run.stop_reasons) == (True, [str(run.stops[0])])

    def test_reading_whether_to_stop_changes_nothing(self) -> None:
        bus = RecordingBus()
        with bus.run(epochs=2) as run:
            bus.emit("before_train_epoch")
            iterate(bus, 1)
            bus.emit("after_train_epoch")
            run.request_stop("enough")
            run.request_skip_iter()
            before = (list(bus.emitted_points), run.queue.waiting, run.clock.state_dict()["epochs_done"])
            assert (run.should_stop, run.should_stop_epoch, run.should_skip_iter) == (False, False, True)
            assert (bus.emitted_points, run.queue.waiting, run.epochs_done) == before

    def test_should_stop_is_true_at_the_limit_without_a_request(self) -> None:
        bus = HookBus()
        with bus.run(iterations=2) as run:
            iterate(bus, 1)
            assert not run.should_stop
            iterate(bus, 1)
            assert (run.should_stop, run.should_stop_epoch, run.stops) == (True, True, [])
        assert run.outcome == "finished"

    def test_request_to_stop_the_epoch_applies_until_the_next_epoch(self) -> None:
        bus = HookBus()
        bus.on("after_train_iter")(lambda run: run.request_stop_epoch())
        with bus.run(epochs=2) as run:
            bus.emit("before_train_epoch")
            iterate(bus, 1)
            assert (run.should_stop_epoch, run.should_stop) == (True, False)
            bus.emit("after_train_epoch")
            bus.emit("before_train_epoch")
            assert not run.should_stop_epoch

    def test_request_that_cannot_be_processed_raises_an_error(self) -> None:
        with HookBus().run() as run:
            with pytest.raises(RequestError, match="loop requested a checkpoint, but no hook writes checkpoints"):
                run.request_save()
            with pytest.raises(RequestError, match="The run has no validation function"):
                run.request_validation()
            with pytest.raises(RequestError, match="The run has no validation function"):
                run.validate()

    def test_epochs_of_a_run_without_limit_raise_an_error(self) -> None:
        with HookBus().run() as run, pytest.raises(LoopError, match="run.epochs\\(\\): the run has no limit"):
            next(run.epochs())
