"""What hooks may ask a run for."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from hookbus import Hook, HookBus
from hookbus.errors import LoopError, RequestError
from hookbus.requests import Kind
from hookbus.run import Run


def iterate(bus: HookBus, *batches: Any) -> None:
    for batch in batches:
        bus.emit("before_train_iter", batch=batch)
        bus.emit("after_train_iter", batch=batch)


class Asks(Hook):
    """Asks for everything that can be asked for at the end of the first iteration."""

    def before_run(self, run: Run) -> None:
        run.provide("saver", self)

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
    def test_are_there_at_the_end_with_who_why_and_when(self) -> None:
        bus, seen = HookBus([Asks(name="curious")]), []
        bus.on("after_run", name="end")(lambda run: seen.extend(run.queue.history))
        with bus.run(epochs=1, validate=lambda: {"loss": 0.5}) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                iterate(bus, 1)
        assert [(each.kind, str(each), each.iteration, each.step) for each in seen] == [
            (Kind.SKIP_ITER, "curious: no good", 0, 0),
            (Kind.VALIDATE, "curious: how is it", 0, 1),
            (Kind.SAVE, "curious: for later", 0, 1),
            (Kind.STOP_EPOCH, "curious: tired", 0, 1),
            (Kind.STOP, "curious: enough", 0, 1),
        ]
        assert seen[2].details == {"saver": bus.hooks["curious"], "color": "red"}
        assert (run.stop_reasons, run.outcome) == (["curious: enough"], "stopped")

    def test_of_ctrl_c_are_its_own_whichever_hook_is_running(self) -> None:
        class Busy(Hook):
            def after_train_iter(self, run: Run) -> None:
                run.interrupt()

        bus = HookBus([Busy()])
        with contextlib.suppress(KeyboardInterrupt), bus.run() as run:
            iterate(bus, 1)
            assert (run.stop_reasons, run.should_stop) == (["Ctrl-C"], True)
        assert run.outcome == "interrupted"

    def test_of_a_stop_are_agreed_to_when_the_loop_asks_but_not_when_a_hook_does(self) -> None:
        bus, seen = HookBus(), []

        def ask(run: Run) -> None:
            run.request_stop("enough")
            seen.append(run.should_stop)

        bus.on("before_train_iter")(ask)
        with bus.run() as run:
            bus.emit("before_train_iter")
            assert (seen, run.stops) == ([False], [])
            assert run.should_stop
            assert run.stop_reasons == [str(run.stops[0])]

    def test_reaching_the_limit_ends_the_loop_without_anybody_asking(self) -> None:
        bus = HookBus()
        with bus.run(iterations=2) as run:
            iterate(bus, 1)
            assert not run.should_stop
            iterate(bus, 1)
            assert (run.should_stop, run.should_stop_epoch, run.stops) == (True, True, [])
        assert run.outcome == "finished"

    def test_to_end_the_epoch_hold_until_the_next_begins(self) -> None:
        bus = HookBus()
        bus.on("after_train_iter")(lambda run: run.request_stop_epoch())
        with bus.run(epochs=2) as run:
            bus.emit("before_train_epoch")
            iterate(bus, 1)
            assert (run.should_stop_epoch, run.should_stop) == (True, False)
            bus.emit("after_train_epoch")
            bus.emit("before_train_epoch")
            assert not run.should_stop_epoch

    def test_that_nobody_can_meet_say_what_is_missing(self) -> None:
        with HookBus().run() as run:
            with pytest.raises(RequestError, match="loop requested a checkpoint, but no hook writes checkpoints"):
                run.request_save()
            with pytest.raises(RequestError, match="The run has no validation function"):
                run.request_validation()
            with pytest.raises(RequestError, match="The run has no validation function"):
                run.validate()

    def test_of_a_run_without_limit_for_its_epochs_are_an_error(self) -> None:
        with HookBus().run() as run, pytest.raises(LoopError, match="run.epochs\\(\\): the run has no limit"):
            next(run.epochs())
