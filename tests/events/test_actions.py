"""Tests of actions: steps of the loop that hooks replace or wrap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from hookbus import Hook, HookBus, hookimpl
from hookbus._events.actions import action_arguments, as_step
from hookbus.bus import ActionSpecs
from hookbus.errors import HookStopIterationError, PointError


class Wrapping(Hook):
    """Wrapper that records the start and the end of the step."""

    def __init__(self, seen: list[str], **settings: Any) -> None:
        super().__init__(**settings)
        self.seen = seen

    @hookimpl(wrapper=True)
    def train_step(self, run: Any, batch: Any) -> Generator[None, Any, Any]:
        self.seen.append(f"{self.name} starts")
        result = yield
        self.seen.append(f"{self.name} ends")
        return result


class Replacing(Hook):
    """Replacement of the step, unless `answer` is None."""

    def __init__(self, answer: Any, seen: list[str] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.answer, self.seen = answer, seen if seen is not None else []

    def train_step(self, batch: Any) -> Any:
        self.seen.append(self.name)
        return self.answer


def double(batch: int) -> int:
    return 2 * batch


@pytest.fixture
def seen() -> list[str]:
    return []


def test_actions_are_documented_and_take_run_and_batch() -> None:
    actions = ["train_step", "val_step", "test_step", "predict_step"]
    assert action_arguments(ActionSpecs) == dict.fromkeys(actions, ("batch",))
    assert all(getattr(ActionSpecs, name).__doc__ for name in action_arguments(ActionSpecs))


# -- the step of the loop --------------------------------------------------------------------------------------


def test_step_is_called_directly_if_no_hook_implements_the_action() -> None:
    bus: Any = HookBus([Hook()])
    bus.action("train_step", double)
    own = bus.table.steps["train_step"]
    assert bus.calls.get("train_step") is own
    assert bus.calls.train_step(bus.current, 4) == 8


def test_action_reflects_later_registrations(seen: list[str]) -> None:
    bus: Any = HookBus()
    step = bus.action("train_step", double)
    assert step(3) == 6
    hook = Replacing("replaced")
    bus.register(hook)
    assert step(3) == "replaced"
    bus.unregister(hook)
    assert step(3) == 6


@pytest.mark.parametrize(
    "step",
    [
        lambda batch: ("got", batch),
        lambda run, batch: ("got", batch),
        lambda first, second: ("got", second),
        lambda batch, scale=1: ("got", batch),
        lambda batch, *, scale=1: ("got", batch),
    ],
)
def test_step_accepts_batch_or_run_and_batch(step: Callable[..., Any]) -> None:
    assert as_step(step)("the run", 5) == ("got", 5)


@pytest.mark.parametrize(("step", "count"), [(lambda: 0, 0), (lambda a, b, c: 0, 3)])
def test_step_with_other_parameters_raises(step: Callable[..., Any], count: int) -> None:
    with pytest.raises(PointError, match=rf"<lambda>: invalid step, got {count} required parameters"):
        HookBus().action("train_step", step)


def test_unknown_action_raises_and_suggests_a_name() -> None:
    with pytest.raises(PointError, match="Unknown action 'trian_step'. Did you mean 'train_step'"):
        HookBus().action("trian_step", double)


def test_bound_method_with_custom_parameter_names_is_a_valid_step() -> None:
    class Loop:
        def evaluate(self, _run: Any, examples: int) -> int:
            return examples + 1

    bus: Any = HookBus()
    bus.table.steps["val_step"] = Loop().evaluate
    bus.on("val_step", name="passes")(lambda batch: None)
    assert bus.calls.val_step(bus.current, 1) == 2


# -- replacing and wrapping ------------------------------------------------------------------------------------


def test_first_result_other_than_none_is_the_result(seen: list[str]) -> None:
    hooks = [
        Replacing(None, seen, name="passes", priority=10),
        Replacing(0, seen, name="answers", priority=20),
        Replacing("never", seen, name="deeper", priority=30),
    ]
    step = HookBus(hooks).action("train_step", double)
    assert step(3) == 0
    assert seen == ["passes", "answers"]


def test_step_of_the_loop_runs_innermost(seen: list[str]) -> None:
    class Last(Replacing):
        @hookimpl(trylast=True)
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    hooks = [
        Last(None, seen, name="last"),
        Last(None, seen, name="lower", priority=90),
        Replacing(None, seen, name="a"),
    ]
    assert HookBus(hooks).action("train_step", double)(3) == 6
    assert seen == ["a", "last", "lower"]


def test_lower_priorities_run_outermost_and_ties_nest_in_registration_order(seen: list[str]) -> None:
    priorities = {"a": 50, "b": 10, "c": 90, "d": 50}
    bus = HookBus([Wrapping(seen, name=name, priority=priority) for name, priority in priorities.items()])
    assert bus.action("train_step", double)(3) == 6
    assert [entry[0] for entry in seen] == ["b", "a", "d", "c", "c", "d", "a", "b"]


def test_replacements_of_equal_priority_run_in_registration_order(seen: list[str]) -> None:
    bus = HookBus([Replacing(None, seen, name=name) for name in "abc"])
    bus.action("train_step", double)(3)
    assert seen == ["a", "b", "c"]


def test_registration_priority_applies_to_actions(seen: list[str]) -> None:
    bus = HookBus([Replacing(None, seen, name="a")])
    bus.register(Replacing(None, seen, name="b"), priority=3)
    bus.action("train_step", double)(3)
    assert seen == ["b", "a"]


def test_tryfirst_and_trylast_take_precedence_over_priority(seen: list[str]) -> None:
    class First(Replacing):
        @hookimpl(tryfirst=True)
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    class Last(Replacing):
        @hookimpl(trylast=True)
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    hooks = [
        Last(None, seen, name="last", priority=0),
        Replacing(None, seen, name="middle", priority=50),
        First(None, seen, name="second", priority=100),
        First(None, seen, name="first", priority=99),
    ]
    assert HookBus(hooks).action("train_step", double)(3) == 6
    assert seen == ["first", "second", "middle", "last"]


def test_wrapper_can_change_the_result_and_catch_exceptions() -> None:
    class Retry(Hook):
        @hookimpl(wrapper=True)
        def train_step(self, batch: Any) -> Generator[None, Any, Any]:
            try:
                result = yield
            except MemoryError:
                return "skipped"
            return result + 1

    def step(batch: int) -> int:
        if batch > 9:
            raise MemoryError
        return batch

    action = HookBus([Retry()]).action("train_step", step)
    assert action(3) == 4
    assert action(10) == "skipped"


def test_argument_aliases_work_in_actions() -> None:
    class Spelled(Hook):
        def train_step(self, data_batch: Any, runner: Any) -> Any:
            return (data_batch, runner)

        def val_step(self, trainer: Any, batch: Any) -> Any:
            return (batch, trainer)

        def test_step(self, trainner: Any, batch: Any) -> Any:
            return (batch, trainner)

    bus = HookBus([Spelled()])
    for action in ("train_step", "val_step", "test_step"):
        assert bus.action(action, double)(3) == (3, bus.current)


def test_argument_aliases_work_in_wrappers_of_actions() -> None:
    class Wraps(Hook):
        @hookimpl(wrapper=True)
        def train_step(self, trainer: Any, batch: Any) -> Any:
            return (trainer, batch, (yield))

    bus = HookBus([Wraps()])
    assert bus.action("train_step", double)(3) == (bus.current, 3, 6)


def test_plain_plugins_and_functions_can_implement_actions() -> None:
    class Plain:
        @hookimpl
        def val_step(self, batch: Any) -> Any:
            return f"plain {batch}"

    bus: Any = HookBus([Plain()])
    bus.on("test_step")(lambda run, batch: f"function {batch}")
    assert bus.action("val_step", double)(1) == "plain 1"
    assert bus.action("test_step", double)(2) == "function 2"


# -- failures --------------------------------------------------------------------------------------------------


class FailingStep(Hook):
    observer = True  # exceptions propagate all the same, because an action without a step has no result

    def __init__(self, error: Exception, **settings: Any) -> None:
        super().__init__(**settings)
        self.error = error

    def train_step(self, batch: Any) -> Any:
        raise self.error


class FailingWrapper(FailingStep):
    @hookimpl(wrapper=True)
    def train_step(self, batch: Any) -> Generator[None, Any, Any]:
        yield
        raise self.error


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize("hook", [FailingStep, FailingWrapper])
def test_exception_in_an_action_has_a_note_with_the_hook(hook: type[FailingStep], seen: list[str]) -> None:
    error = ValueError("mine")
    bus = HookBus([Wrapping(seen, name="around", priority=0), hook(error, name="failing")])
    with pytest.raises(ValueError, match="mine") as caught:
        bus.action("train_step", double)(3)
    assert caught.value is error
    assert notes(error) == [f"raised by hook 'failing' (module {__name__}) at train_step, epoch 1, iteration 1"]


def test_note_names_the_failing_instance_of_a_class(seen: list[str]) -> None:
    hooks = [FailingStep(ValueError("a"), name="a", priority=10), FailingStep(ValueError("b"), name="b", priority=90)]
    with pytest.raises(ValueError, match="a") as caught:
        HookBus(hooks).action("train_step", double)(3)
    assert "raised by hook 'a'" in notes(caught.value)[0]


def test_exception_of_the_step_of_the_loop_has_no_note(seen: list[str]) -> None:
    error = ValueError("of the loop")

    def step(batch: int) -> int:
        raise error

    with pytest.raises(ValueError, match="of the loop"):
        HookBus([Wrapping(seen), Replacing(None)]).action("train_step", step)(3)
    assert notes(error) == []


def test_stop_iteration_of_a_hook_raises_hook_stop_iteration_error() -> None:
    with pytest.raises(HookStopIterationError, match="StopIteration raised by hook 'failing_step'"):
        HookBus([FailingStep(StopIteration())]).action("train_step", double)(3)


def test_keyboard_interrupt_propagates() -> None:
    class Interrupted(Hook):
        def train_step(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        HookBus([Interrupted()]).action("train_step", double)(3)


# -- requests --------------------------------------------------------------------------------------------------


def test_request_within_an_action_is_attributed_to_the_hook() -> None:
    class Stop(Hook):
        def train_step(self, run: Any) -> Any:
            run.request_stop("enough")

    class PlainStop:
        @hookimpl(wrapper=True)
        def train_step(self, run: Any) -> Generator[None, Any, Any]:
            result = yield
            run.request_stop("enough as well")
            return result

    bus: Any = HookBus([Stop()])
    bus.register(PlainStop(), "plain")
    bus.action("train_step", double)(3)
    assert sorted(request.requested_by for request in bus.current.queue.waiting) == ["plain", "stop"]


def test_request_from_a_thread_of_a_hook_is_attributed_to_the_hook() -> None:
    class Background(Hook):
        def train_step(self, run: Any) -> Any:
            thread = threading.Thread(target=self.work, args=(run,))
            thread.start()
            thread.join()

        def work(self, run: Any) -> None:
            run.request_stop("from a thread")

    bus: Any = HookBus([Background()])
    bus.action("train_step", double)(3)
    assert [request.requested_by for request in bus.current.queue.waiting] == ["background"]
