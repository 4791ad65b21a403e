"""What becomes of a hook that fails: who is told, who goes on, what is left in the end."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError, HookFailure, HookWarning

MODULE = f"module {__name__}"


class Failing(Hook):
    """Raises what `fails(run)` returns, if anything."""

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


class Watching(Failing):
    observer = True


class Noting(Hook):
    """Listens after the failing hook in registration order, at before and after points alike."""

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
def warned(*expected: str) -> Iterator[None]:
    """Exactly these warnings, by parts of their texts, in order."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        yield
    assert [each.category for each in shown] == [HookWarning] * len(expected), [str(each.message) for each in shown]
    for each, text in zip(shown, expected, strict=True):
        assert text in str(each.message)


# -- raise -----------------------------------------------------------------------------------------------------


def test_a_failure_goes_on_as_it_is_with_a_note_of_who_where_and_when() -> None:
    error = KeyError("mine")
    bus: Any = HookBus([Failing(lambda run: error if run.iters_done == 5 else None), noting := Noting()])
    with pytest.raises(KeyError) as caught, bus.run():
        iterate(bus, 3, epochs=2)
    assert caught.value is error
    where = "at after_train_iter, epoch 2, iteration 5"
    assert error.__notes__ == [f"raised by hook 'failing' ({MODULE}) {where}"]
    assert "raise error" in "".join(traceback.format_exception(error))
    assert noting.called == [
        *("iter 0", "iter 1", "iter 2", "iter 3"),
        "exception 'mine'",
        "after_run failed",
        "cleanup",
    ]


def test_stop_iteration_is_a_failure_like_any_other() -> None:
    bus: Any = HookBus([Failing(always(StopIteration("done")))])
    with pytest.raises(HookFailure, match="StopIteration raised by hook 'failing' .* at after_train_iter") as caught:
        iterate(bus, 1)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert caught.value.__cause__.value == "done"


def test_stop_iteration_in_a_generator_of_the_loop_does_not_end_it_silently() -> None:
    bus: Any = HookBus([Failing(always(StopIteration()))])

    def batches() -> Iterator[int]:
        for i in range(3):
            yield i
            bus.emit("after_train_iter", batch_idx=i)

    with pytest.raises(HookFailure):
        list(batches())


@pytest.mark.parametrize("hook", [Failing, Watching])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_interrupts_pass_whatever_the_policy_is(hook: type[Failing], error: BaseException) -> None:
    bus: Any = HookBus([hook(always(error), on_error="disable")])
    with pytest.raises(type(error)) as caught:
        iterate(bus, 1)
    assert caught.value is error
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("point", ["after_run", "cleanup"])
def test_an_interrupt_at_the_end_reaches_the_others_and_then_leaves(point: str, error: BaseException) -> None:
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


def test_an_observer_warns_once_and_the_others_are_still_called() -> None:
    bus: Any = HookBus([watching := Watching(at_iterations(1, 3)), noting := Noting()])
    with (
        warned(
            f"hook 'watching' ({MODULE}) failed at after_train_iter: ValueError: at 1. Training continues.",
            f"hook 'watching' ({MODULE}) failed 2 times; its results are incomplete. "
            "First failure: ValueError: at 1",
        ),
        bus.run(),
    ):
        iterate(bus, 4)
    assert noting.called == ["iter 0", "iter 1", "iter 2", "iter 3", "after_run finished", "cleanup"]
    assert watching.called.count("after_train_iter") == 4


def test_a_configuration_that_does_not_hold_ends_the_run_of_an_observer_too_unless_it_says_otherwise() -> None:
    wrong = ConfigError(["targets: there is no layer 7."])
    bus: Any = HookBus([Watching(always(wrong))])
    with pytest.raises(ConfigError, match="no layer 7"), bus.run():
        iterate(bus, 1)
    told: Any = HookBus([Watching(always(wrong), on_error="warn")])
    with warned("no layer 7. Training continues."), told.run():
        iterate(told, 1)


def test_one_failure_is_told_once() -> None:
    bus: Any = HookBus([Watching(at_iterations(2))])
    with warned("failed at after_train_iter: ValueError: at 2. Training continues."), bus.run():
        iterate(bus, 9)


def test_three_failures_in_a_row_disable_the_whole_hook_but_its_cleanup() -> None:
    bus: Any = HookBus([watching := Watching(at_iterations(2, 3, 4, 5)), noting := Noting()])
    with (
        warned("Training continues", "failed 3 times, disabled since epoch 1, iteration 4; its results"),
        bus.run(),
    ):
        iterate(bus, 6)
    assert watching.called == ["before_train_iter", "after_train_iter"] * 4 + ["cleanup"]
    assert noting.called.count("iter 5") == 1


def test_a_success_in_between_begins_the_count_again() -> None:
    bus: Any = HookBus([watching := Watching(at_iterations(1, 2, 4, 5, 7, 8))])
    with warned("Training continues", "failed 6 times; its results"), bus.run():
        iterate(bus, 9)
    assert watching.called.count("after_train_iter") == 9


def test_failures_in_a_row_are_those_of_one_listener() -> None:
    class Half(Hook):
        observer = True
        called = 0

        def before_train_iter(self) -> None:
            raise ValueError("always")

        def after_train_iter(self) -> None:
            self.called += 1

    bus: Any = HookBus([half := Half()])
    with warned("Training continues", "failed 3 times, disabled since epoch 1, iteration 3"), bus.run():
        iterate(bus, 6)
    assert half.called == 2


def test_a_hook_may_be_disabled_at_its_first_failure() -> None:
    bus: Any = HookBus([hook := Failing(at_iterations(2, 3), on_error="disable")])
    with warned("ValueError: at 2. The hook is disabled.", "failed 1 times, disabled since epoch 1, iteration 2"), bus.run():
        iterate(bus, 5)
    assert hook.called == ["before_train_iter", "after_train_iter"] * 2 + ["cleanup"]


def test_the_file_decides_over_the_class() -> None:
    bus: Any = HookBus([Watching(always(ValueError("no")), on_error="raise")])
    with pytest.raises(ValueError, match="no"):
        iterate(bus, 1)
    bus = HookBus([Failing(always(ValueError("no")), on_error="warn")])
    with warned("failed at after_train_iter: ValueError: no. Training continues."):
        iterate(bus, 2)


def test_a_plugin_that_is_no_hook_raises() -> None:
    bus: Any = HookBus()

    @bus.on("before_train")
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        bus.emit("before_train")
    assert f"raised by hook '{__name__}.{fail.__qualname__}'" in caught.value.__notes__[0]


def test_stop_iteration_of_an_observer_is_counted_like_other_failures() -> None:
    bus: Any = HookBus([Watching(at_iterations())])
    bus.register(Watching(always(StopIteration()), name="stops"))
    with warned(f"hook 'stops' ({MODULE}) failed at after_train_iter: StopIteration. Training"):
        iterate(bus, 1)


def test_a_should_trigger_that_fails_is_a_failure_of_its_hook() -> None:
    class Asked(Watching):
        def should_trigger(self, step: int) -> bool:
            raise ValueError("no answer")

    bus: Any = HookBus([Asked(at_iterations()), noting := Noting()])
    with warned(f"hook 'asked' ({MODULE}) failed at before_train_iter: ValueError: no answer"):
        iterate(bus, 1)
    assert noting.called == ["iter 0"]


def test_nothing_is_put_around_a_listener_before_its_hook_has_failed() -> None:
    bus: Any = HookBus([watching := Watching(at_iterations(1))])

    def call_of(point: str) -> object:
        return bus.table.listeners(point, bus.current)[0].call

    assert call_of("after_train_iter") == watching.after_train_iter
    with warned("Training continues"):
        iterate(bus, 2)
    assert call_of("after_train_iter") != watching.after_train_iter


def test_each_run_counts_and_warns_anew() -> None:
    bus: Any = HookBus([watching := Watching(always(ValueError()))])
    for _ in range(2):
        with warned("ValueError. Training continues.", "failed 3 times, disabled since epoch"), bus.run():
            iterate(bus, 5)
    assert watching.called.count("after_train_iter") == 6


def test_a_hook_that_comes_under_the_name_of_a_disabled_one_is_not_disabled() -> None:
    bus: Any = HookBus([Watching(always(ValueError()), name="same")])
    with warned("Training continues"):
        iterate(bus, 4)
    bus.unregister("same")
    bus.register(fresh := Watching(at_iterations(), name="same"))
    iterate(bus, 1)
    assert fresh.called == ["before_train_iter", "after_train_iter"]


def test_a_disabled_hook_has_no_say_in_actions_either() -> None:
    class Doubling(Watching):
        def train_step(self, batch: int) -> int:
            return 2 * batch

    bus: Any = HookBus([Doubling(at_iterations(1), on_error="disable")])
    step = bus.action("train_step", lambda batch: batch)
    assert step(3) == 6
    with warned("The hook is disabled"):
        iterate(bus, 1)
    assert step(3) == 3


# -- events inside events --------------------------------------------------------------------------------------


class Recording(Hook):
    observer = True

    def after_train_iter(self, run: Any) -> None:
        run.bus.emit("log_scalars", values={"a": 1.0})


class Strict(Hook):
    def log_scalars(self) -> None:
        raise ValueError("strict")


def test_an_observer_does_not_swallow_the_failure_of_a_hook_that_it_called() -> None:
    bus: Any = HookBus([Recording(), Strict()])
    with pytest.raises(ValueError, match="strict") as caught:
        iterate(bus, 1)
    inner, outer = caught.value.__notes__
    assert inner.startswith("raised by hook 'strict'")
    assert "at log_scalars" in inner
    assert outer.startswith("raised by hook 'recording'")


def test_a_stop_iteration_inside_goes_on_as_well() -> None:
    bus: Any = HookBus([Recording()])
    bus.on("log_scalars")(lambda: next(iter(())))
    with pytest.raises(HookFailure):
        iterate(bus, 1)


def test_an_exception_that_is_raised_again_and_again_is_counted_like_new_ones() -> None:
    class Background(Watching):
        """Raises the one exception that a thread of its own has met, whenever it is called."""

    bus: Any = HookBus([background := Background(always(OSError("connection lost"))), noting := Noting()])
    with warned("OSError: connection lost. Training continues", "failed 3 times, disabled since"), bus.run():
        iterate(bus, 5)
    assert background.called.count("after_train_iter") == 3
    assert noting.called.count("iter 4") == 1


def test_a_failure_inside_that_only_warns_is_not_one_of_the_hook_outside() -> None:
    bus: Any = HookBus([Recording(), Strict(on_error="warn")])
    with warned(f"hook 'strict' ({MODULE}) failed at log_scalars: ValueError: strict"):
        iterate(bus, 2)


# -- points that reach all -------------------------------------------------------------------------------------


class Ending(Noting):
    """Fails at the points that reach every listener."""

    def after_run(self, run: Any) -> None:
        super().after_run(run)
        raise ValueError(f"after_run of {self.name}")

    def cleanup(self) -> None:
        super().cleanup()
        raise KeyError(f"cleanup of {self.name}")


class EndingOnException(Noting):
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        raise TypeError(f"on_exception of {self.name}")


@pytest.mark.parametrize("point", ["on_exception", "after_run", "cleanup"])
def test_all_listeners_are_reached_and_a_single_failure_is_raised_as_it_is(point: str) -> None:
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


def test_several_failures_are_raised_together() -> None:
    bus: Any = HookBus([Ending(name="a"), Ending(name="b"), noting := Noting()])
    with pytest.raises(ExceptionGroup, match="2 hooks failed at after_run") as caught:
        bus.emit("after_run")
    assert [str(each) for each in caught.value.exceptions] == ["after_run of b", "after_run of a"]
    assert "at after_run" in caught.value.exceptions[0].__notes__[0]
    assert noting.called == ["after_run running"]


def test_after_run_and_cleanup_follow_a_failure_and_everything_is_told() -> None:
    bus: Any = HookBus([Ending(), noting := Noting()])
    with pytest.raises(BaseExceptionGroup, match="hooks failed at the end of the run") as caught, bus.run() as run:
        iterate(bus, 1)
    assert [type(each) for each in caught.value.exceptions] == [ValueError, KeyError]
    assert noting.called == ["iter 0", "after_run finished", "cleanup"]
    assert run.outcome == "failed"


def test_the_error_of_the_training_stays_the_main_one_with_the_others_noted_on_it() -> None:
    bus: Any = HookBus([Ending(name="ending"), EndingOnException(name="failing"), noting := Noting()])
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
    assert noting.called == ["iter 0", "exception training", "after_run failed", "cleanup"]
    assert run.exception is error


def test_observers_that_fail_at_the_end_only_warn() -> None:
    class Watch(Ending):
        observer = True

    bus: Any = HookBus([Watch()])
    with warned("failed at after_run: ValueError", "failed 2 times"), bus.run() as run:
        pass
    assert run.outcome == "finished"


def ended(bus: Any, ending: Callable[[Any], None]) -> list[str]:
    bus.register(noting := Noting())
    try:
        with bus.run(epochs=3) as run:
            for _ in run.epochs():
                iterate(bus, 1)
                ending(run)
    except (ValueError, KeyboardInterrupt) as error:
        noting.called.append(f"left by {type(error).__name__}")
    return [each for each in noting.called if "iter" not in each]


def fail(run: Any) -> None:
    raise ValueError("no")


def interrupt(run: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("ending", "called"),
    [
        (lambda run: None, ["after_run finished", "cleanup"]),
        (lambda run: run.request_stop("enough"), ["after_run stopped", "cleanup"]),
        (fail, ["exception no", "after_run failed", "cleanup", "left by ValueError"]),
        (interrupt, ["exception ", "after_run interrupted", "cleanup", "left by KeyboardInterrupt"]),
    ],
    ids=["normal end", "stop", "exception", "interrupt"],
)
def test_the_end_is_told_exactly_once_with_the_outcome(ending: Callable[[Any], None], called: list[str]) -> None:
    assert ended(HookBus(), ending) == called
