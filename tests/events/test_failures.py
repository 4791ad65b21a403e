"""Tests of the policy for exceptions of hooks."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError, HookStopIterationError, HookWarning

MODULE = f"module {__name__}"


class Failing(Hook):
    """Hook that raises the exception returned by `fails(run)`, if any."""

    def __init__(self, fails: Callable[[Any], BaseException | None], **settings: Any) -> None:
        super().__init__(**settings)
        self.fails = fails
        self.called: list[str] = []

    def before_train_iter(self, run: Any) -> None:
        self.called.append("before_train_iter")

    def after_train_iter(self, run: Any) -> None:
        self.called.append("after_train_iter")
        if error := self.fails(run):
            raise error

    def cleanup(self) -> None:
        self.called.append("cleanup")


class Observing(Failing):
    observer = True


class Recorder(Hook):
    """Hook that records its events and runs after the failing hook at `after_*` points."""

    priority = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.called: list[str] = []

    def after_train_iter(self, run: Any) -> None:
        self.called.append(f"iter {run.iter}")

    def on_exception(self, exception: BaseException) -> None:
        self.called.append(f"exception {exception}")

    def after_run(self, run: Any) -> None:
        self.called.append(f"after_run {run.outcome}")

    def cleanup(self) -> None:
        self.called.append("cleanup")


def always(error: BaseException) -> Callable[[Any], BaseException]:
    return lambda run: error


def fail_with(error: BaseException) -> Callable[[Any], None]:
    def listener(run: Any) -> None:
        raise error

    return listener


def at_iterations(*numbers: int) -> Callable[[Any], BaseException | None]:
    return lambda run: ValueError(f"at {run.iters_done}") if run.iters_done in numbers else None


def iterate(bus: Any, iterations: int, epochs: int = 1) -> None:
    for _ in range(epochs):
        bus.emit("before_train_epoch")
        for i in range(iterations):
            bus.emit("before_train_iter", batch_idx=i)
            bus.emit("after_train_iter", batch_idx=i)
        bus.emit("after_train_epoch")


@contextmanager
def expect_warnings(*expected: str) -> Iterator[None]:
    """Check that exactly these warnings are issued, in order; `expected` are parts of their messages."""
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        yield
    assert [entry.category for entry in caught_warnings] == [HookWarning] * len(expected), [
        str(entry.message) for entry in caught_warnings
    ]
    for entry, text in zip(caught_warnings, expected, strict=True):
        assert text in str(entry.message)


# -- raise -----------------------------------------------------------------------------------------------------


def test_exception_propagates_with_a_note_of_hook_point_and_position() -> None:
    error = KeyError("mine")
    bus: Any = HookBus([Failing(lambda run: error if run.iters_done == 5 else None), recorder := Recorder()])
    with pytest.raises(KeyError) as caught, bus.run():
        iterate(bus, 3, epochs=2)
    assert caught.value is error
    where = "at after_train_iter, epoch 2, iteration 5"
    assert error.__notes__ == [f"raised by hook 'failing' ({MODULE}) {where}"]
    assert "raise error" in "".join(traceback.format_exception(error))
    assert recorder.called == [
        *("iter 0", "iter 1", "iter 2", "iter 3"),
        "exception 'mine'",
        "after_run failed",
        "cleanup",
    ]


def test_stop_iteration_raises_hook_stop_iteration_error() -> None:
    bus: Any = HookBus([Failing(always(StopIteration("done")))])
    with pytest.raises(
        HookStopIterationError, match="StopIteration raised by hook 'failing' .* at after_train_iter"
    ) as caught:
        iterate(bus, 1)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert caught.value.__cause__.value == "done"


def test_stop_iteration_does_not_end_a_generator_silently() -> None:
    bus: Any = HookBus([Failing(always(StopIteration()))])

    def batches() -> Iterator[int]:
        for i in range(3):
            yield i
            bus.emit("after_train_iter", batch_idx=i)

    with pytest.raises(HookStopIterationError):
        list(batches())


@pytest.mark.parametrize("hook", [Failing, Observing])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_interrupts_propagate_under_every_policy(hook: type[Failing], error: BaseException) -> None:
    bus: Any = HookBus([hook(always(error), on_error="disable")])
    with pytest.raises(type(error)) as caught:
        iterate(bus, 1)
    assert caught.value is error
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("point", ["after_run", "cleanup"])
def test_interrupt_at_the_end_propagates_after_all_listeners_ran(point: str, error: BaseException) -> None:
    called: list[str] = []
    bus: Any = HookBus()

    def failing() -> None:
        called.append("failing")
        raise ValueError("no")

    def interrupted() -> None:
        called.append("interrupted")
        raise error

    for name, function in (("last", lambda: called.append("last")), ("b", failing), ("a", interrupted)):
        bus.on(point, name=name)(function)
    with pytest.raises(type(error)) as caught, bus.run():
        pass
    assert caught.value is error
    assert called == ["interrupted", "failing", "last"]
    (note,) = error.__notes__
    assert note == f"also raised: ValueError: no (raised by hook 'b' ({MODULE}) at {point}, epoch 1, iteration 1)"
    del error.__notes__


# -- warn and disable ------------------------------------------------------------------------------------------


def test_observer_failure_warns_once_and_other_hooks_are_called() -> None:
    bus: Any = HookBus([observing := Observing(at_iterations(1, 3)), recorder := Recorder()])
    with (
        expect_warnings(
            f"hook 'observing' ({MODULE}) failed at after_train_iter: ValueError: at 1. Training continues.",
            f"hook 'observing' ({MODULE}) failed 2 times; its results are incomplete. First failure: ValueError: at 1",
        ),
        bus.run(),
    ):
        iterate(bus, 4)
    assert recorder.called == ["iter 0", "iter 1", "iter 2", "iter 3", "after_run finished", "cleanup"]
    assert observing.called.count("after_train_iter") == 4


def test_config_error_of_an_observer_ends_the_run_unless_configured() -> None:
    wrong = ConfigError(["targets: there is no layer 7."])
    bus: Any = HookBus([Observing(always(wrong))])
    with pytest.raises(ConfigError, match="no layer 7"), bus.run():
        iterate(bus, 1)
    configured: Any = HookBus([Observing(always(wrong), on_error="warn")])
    with expect_warnings("no layer 7. Training continues."), configured.run():
        iterate(configured, 1)


def test_single_failure_is_reported_once() -> None:
    bus: Any = HookBus([Observing(at_iterations(2))])
    with expect_warnings("failed at after_train_iter: ValueError: at 2. Training continues."), bus.run():
        iterate(bus, 9)


def test_three_consecutive_failures_disable_all_but_cleanup() -> None:
    bus: Any = HookBus([observing := Observing(at_iterations(2, 3, 4, 5)), recorder := Recorder()])
    with (
        expect_warnings("Training continues", "failed 3 times, disabled since epoch 1, iteration 4; its results"),
        bus.run(),
    ):
        iterate(bus, 6)
    assert observing.called == ["before_train_iter", "after_train_iter"] * 4 + ["cleanup"]
    assert recorder.called.count("iter 5") == 1


def test_success_resets_the_count_of_consecutive_failures() -> None:
    bus: Any = HookBus([observing := Observing(at_iterations(1, 2, 4, 5, 7, 8))])
    with expect_warnings("Training continues", "failed 6 times; its results"), bus.run():
        iterate(bus, 9)
    assert observing.called.count("after_train_iter") == 9


def test_consecutive_failures_are_counted_per_listener() -> None:
    class HalfFailing(Hook):
        observer = True
        called = 0

        def before_train_iter(self) -> None:
            raise ValueError("always")

        def after_train_iter(self) -> None:
            self.called += 1

    bus: Any = HookBus([half := HalfFailing()])
    with expect_warnings("Training continues", "failed 3 times, disabled since epoch 1, iteration 3"), bus.run():
        iterate(bus, 6)
    assert half.called == 2


def test_on_error_disable_disables_at_the_first_failure() -> None:
    bus: Any = HookBus([hook := Failing(at_iterations(2, 3), on_error="disable")])
    with (
        expect_warnings(
            "ValueError: at 2. The hook is disabled.", "failed 1 times, disabled since epoch 1, iteration 2"
        ),
        bus.run(),
    ):
        iterate(bus, 5)
    assert hook.called == ["before_train_iter", "after_train_iter"] * 2 + ["cleanup"]


def test_on_error_of_the_config_overrides_the_class() -> None:
    bus: Any = HookBus([Observing(always(ValueError("no")), on_error="raise")])
    with pytest.raises(ValueError, match="no"):
        iterate(bus, 1)
    bus = HookBus([Failing(always(ValueError("no")), on_error="warn")])
    with expect_warnings("failed at after_train_iter: ValueError: no. Training continues."):
        iterate(bus, 2)


def test_failure_of_a_plain_plugin_raises() -> None:
    bus: Any = HookBus()

    @bus.on("before_train")
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        bus.emit("before_train")
    assert f"raised by hook '{__name__}.{fail.__qualname__}'" in caught.value.__notes__[0]


def test_stop_iteration_of_an_observer_is_counted_as_a_failure() -> None:
    bus: Any = HookBus([Observing(at_iterations())])
    bus.register(Observing(always(StopIteration()), name="stops"))
    with expect_warnings(f"hook 'stops' ({MODULE}) failed at after_train_iter: StopIteration. Training"):
        iterate(bus, 1)


def test_exception_in_should_trigger_is_attributed_to_its_hook() -> None:
    class FailingTrigger(Observing):
        def should_trigger(self, step: int) -> bool:
            raise ValueError("undecided")

    bus: Any = HookBus([FailingTrigger(at_iterations()), recorder := Recorder()])
    with expect_warnings(f"hook 'failing_trigger' ({MODULE}) failed at before_train_iter: ValueError: undecided"):
        iterate(bus, 1)
    assert recorder.called == ["iter 0"]


def test_listener_is_not_wrapped_before_its_hook_has_failed() -> None:
    bus: Any = HookBus([observing := Observing(at_iterations(1))])

    def get_call(point: str) -> object:
        return bus.table.listeners(point, bus.current)[0].call

    assert get_call("after_train_iter") == observing.after_train_iter
    with expect_warnings("Training continues"):
        iterate(bus, 2)
    assert get_call("after_train_iter") != observing.after_train_iter


def test_failure_counts_are_reset_for_each_run() -> None:
    bus: Any = HookBus([observing := Observing(always(ValueError()))])
    for _ in range(2):
        with expect_warnings("ValueError. Training continues.", "failed 3 times, disabled since epoch"), bus.run():
            iterate(bus, 5)
    assert observing.called.count("after_train_iter") == 6


def test_new_hook_with_the_name_of_a_disabled_hook_is_enabled() -> None:
    bus: Any = HookBus([Observing(always(ValueError()), name="same")])
    with expect_warnings("Training continues"):
        iterate(bus, 4)
    bus.unregister("same")
    bus.register(fresh := Observing(at_iterations(), name="same"))
    iterate(bus, 1)
    assert fresh.called == ["before_train_iter", "after_train_iter"]


def test_disabled_hook_does_not_take_part_in_actions() -> None:
    class Doubling(Observing):
        def train_step(self, batch: int) -> int:
            return 2 * batch

    bus: Any = HookBus([Doubling(at_iterations(1), on_error="disable")])
    step = bus.action("train_step", lambda batch: batch)
    assert step(3) == 6
    with expect_warnings("The hook is disabled"):
        iterate(bus, 1)
    assert step(3) == 3


# -- nested events ---------------------------------------------------------------------------------------------


class Recording(Hook):
    observer = True

    def after_train_iter(self, run: Any) -> None:
        run.bus.emit("log_scalars", values={"a": 1.0})


class Strict(Hook):
    def log_scalars(self) -> None:
        raise ValueError("strict")


def test_observer_does_not_suppress_the_failure_of_a_nested_event() -> None:
    bus: Any = HookBus([Recording(), Strict()])
    with pytest.raises(ValueError, match="strict") as caught:
        iterate(bus, 1)
    inner, outer = caught.value.__notes__
    assert inner.startswith("raised by hook 'strict'")
    assert "at log_scalars" in inner
    assert outer.startswith("raised by hook 'recording'")


def test_stop_iteration_of_a_nested_event_propagates() -> None:
    bus: Any = HookBus([Recording()])
    bus.on("log_scalars")(lambda: next(iter(())))
    with pytest.raises(HookStopIterationError):
        iterate(bus, 1)


def test_repeatedly_raised_exception_object_is_counted_each_time() -> None:
    class Background(Observing):
        """Hook that raises the same exception object, such as that of a background thread, in every call."""

    bus: Any = HookBus([background := Background(always(OSError("connection lost"))), recorder := Recorder()])
    with expect_warnings("OSError: connection lost. Training continues", "failed 3 times, disabled since"), bus.run():
        iterate(bus, 5)
    assert background.called.count("after_train_iter") == 3
    assert recorder.called.count("iter 4") == 1


def test_warning_of_a_nested_event_is_not_attributed_to_the_outer_hook() -> None:
    bus: Any = HookBus([Recording(), Strict(on_error="warn")])
    with expect_warnings(f"hook 'strict' ({MODULE}) failed at log_scalars: ValueError: strict"):
        iterate(bus, 2)


# -- points that call all listeners ----------------------------------------------------------------------------


class Ending(Recorder):
    """Hook that fails at the points that call every listener."""

    def after_run(self, run: Any) -> None:
        super().after_run(run)
        raise ValueError(f"after_run of {self.name}")

    def cleanup(self) -> None:
        super().cleanup()
        raise KeyError(f"cleanup of {self.name}")


class EndingOnException(Recorder):
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        raise TypeError(f"on_exception of {self.name}")


@pytest.mark.parametrize("point", ["on_exception", "after_run", "cleanup"])
def test_all_listeners_are_called_and_a_single_exception_is_unchanged(point: str) -> None:
    bus: Any = HookBus()
    called: list[str] = []
    error = ValueError("second")

    def second() -> None:
        called.append("second")
        raise error

    for name, listener in (
        ("first", lambda: called.append("first")),
        ("second", second),
        ("third", lambda: called.append("third")),
    ):
        bus.on(point, name=name)(listener)
    with pytest.raises(ValueError, match="second") as caught:
        bus.emit(point)
    assert caught.value is error
    assert sorted(called) == ["first", "second", "third"]
    with pytest.raises(ValueError, match="second"):
        bus.emit(point)


def test_multiple_exceptions_are_raised_as_a_group() -> None:
    bus: Any = HookBus([Ending(name="a"), Ending(name="b"), recorder := Recorder()])
    with pytest.raises(ExceptionGroup, match="2 hooks failed at after_run") as caught:
        bus.emit("after_run")
    assert [str(entry) for entry in caught.value.exceptions] == ["after_run of b", "after_run of a"]
    assert "at after_run" in caught.value.exceptions[0].__notes__[0]
    assert recorder.called == ["after_run running"]


def test_after_run_and_cleanup_follow_a_failure_and_all_are_reported() -> None:
    bus: Any = HookBus([Ending(), recorder := Recorder()])
    with pytest.raises(BaseExceptionGroup, match="hooks failed at the end of the run") as caught, bus.run() as run:
        iterate(bus, 1)
    assert [type(entry) for entry in caught.value.exceptions] == [ValueError, KeyError]
    assert recorder.called == ["iter 0", "after_run finished", "cleanup"]
    assert run.outcome == "failed"


def test_training_exception_is_raised_with_later_exceptions_as_notes() -> None:
    bus: Any = HookBus([Ending(name="ending"), EndingOnException(name="failing"), recorder := Recorder()])
    error = RuntimeError("training")
    bus.on("after_train_epoch")(fail_with(error))
    with pytest.raises(RuntimeError, match="training") as caught, bus.run() as run:
        iterate(bus, 1)
    assert caught.value is error
    assert [note.partition(" (")[0] for note in error.__notes__[1:]] == [
        "also raised: TypeError: on_exception of failing",
        "also raised: ValueError: after_run of ending",
        "also raised: KeyError: 'cleanup of ending'",
    ]
    assert "raised by hook 'ending'" in error.__notes__[2]
    assert recorder.called == ["iter 0", "exception training", "after_run failed", "cleanup"]
    assert run.exception is error


def test_observer_failure_at_the_end_only_warns() -> None:
    class Watch(Ending):
        observer = True

    bus: Any = HookBus([Watch()])
    with expect_warnings("failed at after_run: ValueError", "failed 2 times"), bus.run() as run:
        pass
    assert run.outcome == "finished"


def run_until(bus: Any, ending: Callable[[Any], None]) -> list[str]:
    bus.register(recorder := Recorder())
    try:
        with bus.run(epochs=3) as run:
            for _ in run.epochs():
                iterate(bus, 1)
                ending(run)
    except (ValueError, KeyboardInterrupt) as error:
        recorder.called.append(f"raised {type(error).__name__}")
    return [entry for entry in recorder.called if "iter" not in entry]


def fail(run: Any) -> None:
    raise ValueError("no")


def interrupt(run: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("ending", "called"),
    [
        (lambda run: None, ["after_run finished", "cleanup"]),
        (lambda run: run.request_stop("enough"), ["after_run stopped", "cleanup"]),
        (fail, ["exception no", "after_run failed", "cleanup", "raised ValueError"]),
        (interrupt, ["exception ", "after_run interrupted", "cleanup", "raised KeyboardInterrupt"]),
    ],
    ids=["normal end", "stop", "exception", "interrupt"],
)
def test_after_run_is_emitted_exactly_once_with_the_outcome(ending: Callable[[Any], None], called: list[str]) -> None:
    assert run_until(HookBus(), ending) == called
