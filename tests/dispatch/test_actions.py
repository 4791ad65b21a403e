"""Steps that hooks replace or wrap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from hookbus import Hook, HookBus, hookimpl
from hookbus.dispatch.actions import ACTIONS, ActionSpecs, step_of
from hookbus.errors import HookFailure, PointError


class Around(Hook):
    """Notes when the step begins and ends inside of it."""

    def __init__(self, seen: list[str], **settings: Any) -> None:
        super().__init__(**settings)
        self.seen = seen

    @hookimpl(wrapper=True)
    def train_step(self, run: Any, batch: Any) -> Generator[None, Any, Any]:
        self.seen.append(f"{self.name} begins")
        result = yield
        self.seen.append(f"{self.name} ends")
        return result


class Instead(Hook):
    """Replaces the step where `answer` is not None."""

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


def test_the_actions_are_documented_and_take_run_and_batch() -> None:
    assert ACTIONS == {"train_step": ("batch",), "val_step": ("batch",), "test_step": ("batch",)}
    assert all(getattr(ActionSpecs, name).__doc__ for name in ACTIONS)


# -- the loop's own step ---------------------------------------------------------------------------------------


def test_without_a_hook_that_has_a_say_the_step_is_called_directly() -> None:
    bus: Any = HookBus([Hook()])
    bus.action("train_step", double)
    own = bus.table.steps["train_step"]
    assert bus.calls.get("train_step") is own
    assert bus.calls.train_step(bus.current, 4) == 8


def test_an_action_follows_later_changes_of_membership(seen: list[str]) -> None:
    bus: Any = HookBus()
    step = bus.action("train_step", double)
    assert step(3) == 6
    hook = Instead("replaced")
    bus.register(hook)
    assert step(3) == "replaced"
    bus.unregister(hook)
    assert step(3) == 6


@pytest.mark.parametrize(
    "step",
    [
        lambda batch: ("got", batch),
        lambda run, batch: ("got", batch),
        lambda anything, whatever: ("got", whatever),
        lambda batch, scale=1: ("got", batch),
        lambda batch, *, scale=1: ("got", batch),
    ],
)
def test_a_step_takes_the_batch_or_the_run_and_the_batch(step: Callable[..., Any]) -> None:
    assert step_of(step)("the run", 5) == ("got", 5)


@pytest.mark.parametrize(("step", "count"), [(lambda: 0, 0), (lambda a, b, c: 0, 3)])
def test_a_step_that_takes_something_else_is_refused(step: Callable[..., Any], count: int) -> None:
    with pytest.raises(
        PointError, match=rf"<lambda>: invalid step, got {count} required parameters"
    ):
        HookBus().action("train_step", step)


def test_an_unknown_action_is_refused_with_near_names() -> None:
    with pytest.raises(PointError, match="Unknown action 'trian_step'. Did you mean 'train_step'"):
        HookBus().action("trian_step", double)


def test_a_bound_method_with_names_of_its_own_is_a_step() -> None:
    class Loop:
        def judge(self, _run: Any, examples: int) -> int:
            return examples + 1

    bus: Any = HookBus()
    bus.table.steps["val_step"] = Loop().judge
    bus.on("val_step", name="passes")(lambda batch: None)
    assert bus.calls.val_step(bus.current, 1) == 2


# -- replacing and wrapping ------------------------------------------------------------------------------------


def test_the_first_answer_that_is_not_none_is_the_result(seen: list[str]) -> None:
    hooks = [
        Instead(None, seen, name="passes", priority=10),
        Instead(0, seen, name="answers", priority=20),
        Instead("never", seen, name="deeper", priority=30),
    ]
    step = HookBus(hooks).action("train_step", double)
    assert step(3) == 0
    assert seen == ["passes", "answers"]


def test_the_loops_own_step_is_the_innermost_one(seen: list[str]) -> None:
    class Last(Instead):
        @hookimpl(trylast=True)
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    hooks = [Last(None, seen, name="last"), Last(None, seen, name="lower", priority=90), Instead(None, seen, name="a")]
    assert HookBus(hooks).action("train_step", double)(3) == 6
    assert seen == ["a", "last", "lower"]


def test_small_numbers_are_outermost_and_equal_ones_nest_in_the_order_of_registration(seen: list[str]) -> None:
    numbers = {"a": 50, "b": 10, "c": 90, "d": 50}
    bus = HookBus([Around(seen, name=name, priority=number) for name, number in numbers.items()])
    assert bus.action("train_step", double)(3) == 6
    assert [each[0] for each in seen] == ["b", "a", "d", "c", "c", "d", "a", "b"]


def test_equal_replacements_are_asked_in_the_order_of_registration(seen: list[str]) -> None:
    bus = HookBus([Instead(None, seen, name=name) for name in "abc"])
    bus.action("train_step", double)(3)
    assert seen == ["a", "b", "c"]


def test_a_priority_given_at_registration_counts_here_too(seen: list[str]) -> None:
    bus = HookBus([Instead(None, seen, name="a")])
    bus.register(Instead(None, seen, name="b"), priority=3)
    bus.action("train_step", double)(3)
    assert seen == ["b", "a"]


def test_tryfirst_and_trylast_win_over_numbers(seen: list[str]) -> None:
    class First(Instead):
        @hookimpl(tryfirst=True)
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    class Last(Instead):
        @hookimpl(trylast=True)
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    hooks = [
        Last(None, seen, name="last", priority=0),
        Instead(None, seen, name="middle", priority=50),
        First(None, seen, name="second", priority=100),
        First(None, seen, name="first", priority=99),
    ]
    assert HookBus(hooks).action("train_step", double)(3) == 6
    assert seen == ["first", "second", "middle", "last"]


def test_a_wrapper_changes_the_result_and_sees_the_failure_of_the_step() -> None:
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


def test_second_spellings_of_arguments_work_in_actions() -> None:
    class Spelled(Hook):
        def train_step(self, data_batch: Any, runner: Any) -> Any:
            return (data_batch, runner)

    bus = HookBus([Spelled()])
    assert bus.action("train_step", double)(3) == (3, bus.current)


def test_plain_plugins_and_functions_have_a_say_too() -> None:
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
    observer = True  # an action has no result without the step, so a failure goes on all the same

    def __init__(self, error: Exception, **settings: Any) -> None:
        super().__init__(**settings)
        self.error = error

    def train_step(self, batch: Any) -> Any:
        raise self.error


class FailingAround(FailingStep):
    @hookimpl(wrapper=True)
    def train_step(self, batch: Any) -> Generator[None, Any, Any]:
        yield
        raise self.error


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize("hook", [FailingStep, FailingAround])
def test_the_failure_of_a_hook_in_an_action_names_the_hook(hook: type[FailingStep], seen: list[str]) -> None:
    error = ValueError("mine")
    bus = HookBus([Around(seen, name="around", priority=0), hook(error, name="failing")])
    with pytest.raises(ValueError, match="mine") as caught:
        bus.action("train_step", double)(3)
    assert caught.value is error
    assert notes(error) == [f"raised by hook 'failing' (module {__name__}) at train_step, epoch 1, iteration 1"]


def test_of_two_instances_of_one_class_the_one_that_failed_is_named(seen: list[str]) -> None:
    hooks = [FailingStep(ValueError("a"), name="a", priority=10), FailingStep(ValueError("b"), name="b", priority=90)]
    with pytest.raises(ValueError, match="a") as caught:
        HookBus(hooks).action("train_step", double)(3)
    assert "raised by hook 'a'" in notes(caught.value)[0]


def test_the_failure_of_the_loops_own_step_is_nobodys(seen: list[str]) -> None:
    error = ValueError("of the loop")

    def step(batch: int) -> int:
        raise error

    with pytest.raises(ValueError, match="of the loop"):
        HookBus([Around(seen), Instead(None)]).action("train_step", step)(3)
    assert notes(error) == []


def test_stop_iteration_of_a_hook_is_a_failure() -> None:
    with pytest.raises(HookFailure, match="StopIteration raised by hook 'failing_step'"):
        HookBus([FailingStep(StopIteration())]).action("train_step", double)(3)


def test_an_interrupt_passes() -> None:
    class Interrupted(Hook):
        def train_step(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        HookBus([Interrupted()]).action("train_step", double)(3)


# -- who asks --------------------------------------------------------------------------------------------------


def test_a_request_in_an_action_is_the_hooks() -> None:
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
    assert sorted(request.by for request in bus.current.queue.waiting) == ["plain", "stop"]


def test_a_request_from_a_thread_of_a_hook_is_the_hooks() -> None:
    class Background(Hook):
        def train_step(self, run: Any) -> Any:
            thread = threading.Thread(target=self.work, args=(run,))
            thread.start()
            thread.join()

        def work(self, run: Any) -> None:
            run.request_stop("from a thread")

    bus: Any = HookBus([Background()])
    bus.action("train_step", double)(3)
    assert [request.by for request in bus.current.queue.waiting] == ["background"]
