"""Hooks that take part in a run: hooks registered during it, and hooks whose `before_run` was not called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook, HookBus, HookConfig, hookimpl
from hookbus._events.schedules import last
from hookbus._run.run import Run
from hookbus.errors import ConfigError, HookbusError, OrderError, RequestError
from hookbus.lifecycle import POINTS
from hookbus.testing import fake_training
from tests import toys

OPENING = ["before_run", "before_train", "before_epoch", "before_train_epoch"]
ITERATION = [
    "before_train_iter",
    "after_forward",
    "after_backward",
    "before_optimizer_step",
    "after_optimizer_step",
    "after_train_iter",
]
VALIDATION = ["before_val", "before_val_epoch", "after_val_epoch", "after_val"]
END_OF_EPOCH = ["after_train_epoch", *VALIDATION, "after_epoch"]
END = ["after_train", "after_run", "cleanup"]


class Recorder:
    """Plugin that records the points of its events, except for records to log."""

    def __init__(self) -> None:
        self.points: list[str] = []
        for point in (point for point in POINTS if not point.startswith("log_")):
            setattr(self, point, hookimpl(self._make_listener(point)))

    def _make_listener(self, point: str) -> Callable[..., None]:
        def record(run: Run) -> None:
            self.points.append(point)

        return record


class Late(Hook):
    """Hook that fails on request, and records its events."""

    def __init__(self, check: Exception | None = None, failing_point: str = "", **settings: Any) -> None:
        super().__init__(None, **settings)
        self.error, self.failing_point = check, failing_point
        self.points: list[str] = []

    def check(self, run: Run) -> None:
        if self.error is not None:
            raise self.error

    def before_run(self) -> None:
        self._record("before_run")

    def before_train(self) -> None:
        self._record("before_train")

    def after_train_iter(self) -> None:
        self._record("after_train_iter")

    def on_exception(self) -> None:
        self._record("on_exception")

    def after_run(self) -> None:
        self._record("after_run")

    def cleanup(self) -> None:
        self._record("cleanup")

    def _record(self, point: str) -> None:
        self.points.append(point)
        if point == self.failing_point:
            raise OSError("no space left")


def train(point: str, act: Callable[[Run], object], *, iteration: int = 3, **options: Any) -> Run:
    """Train 2 epochs of 2 iterations, each validated; `act` is called at the first event of a point at a count."""
    bus = options.pop("bus", None) or HookBus()
    calls: list[Run] = []

    @bus.on(point, name="loop")
    def register(run: Run) -> None:
        if run.iters_done == iteration and not calls:
            calls.append(run)
            act(run)

    return fake_training(bus=bus, batches=2, scores=lambda epoch: {"accuracy": 0.5}, **options).run


class TestOpening:
    def test_hook_is_opened_before_its_first_event(self) -> None:
        late = Recorder()
        train("after_train_iter", lambda run: run.bus.register(late))
        assert late.points == [*OPENING, *ITERATION, *END_OF_EPOCH, *END]

    @pytest.mark.parametrize(
        ("point", "iteration", "opened", "rest"),
        [
            ("before_run", 0, ["before_run"], None),
            ("before_train", 0, OPENING[:2], None),
            ("before_epoch", 2, OPENING[:3], ["before_train_epoch", *2 * ITERATION, *END_OF_EPOCH, *END]),
            ("before_train_epoch", 2, OPENING, [*2 * ITERATION, *END_OF_EPOCH, *END]),
            ("after_train_epoch", 4, OPENING[:3], [*VALIDATION, "after_epoch", *END]),
            ("after_epoch", 4, OPENING[:2], END),
            ("after_train", 4, ["before_run"], END[1:]),
            ("after_run", 4, [], []),
            ("cleanup", 4, [], []),
        ],
    )
    def test_hook_receives_the_opening_events_of_what_is_open(
        self, point: str, iteration: int, opened: list[str], rest: list[str] | None
    ) -> None:
        late, early = Recorder(), Recorder()
        bus = HookBus()
        bus.register(early, "early", priority=-1)
        train(point, lambda run: run.bus.register(late), iteration=iteration, bus=bus)
        expected = early.points[len(opened) :] if rest is None else rest
        assert late.points == [*opened, *expected]

    def test_hook_registered_within_an_iteration_starts_with_the_next_one(self) -> None:
        late = Recorder()
        train("before_train_iter", lambda run: run.bus.register(late), iteration=2)
        assert late.points == [*OPENING, *ITERATION, *END_OF_EPOCH, *END]

    @pytest.mark.parametrize("point", VALIDATION[:3])
    def test_hook_registered_within_a_validation_starts_after_it(self, point: str) -> None:
        late = Recorder()
        train(point, lambda run: run.bus.register(late), iteration=2)
        first = [*OPENING[:3], "after_epoch"]
        assert late.points == [*first, *OPENING[2:], *2 * ITERATION, *END_OF_EPOCH, *END]

    def test_step_of_a_hook_is_called_from_the_next_iteration_on(self) -> None:
        iterations: list[int] = []

        class Step(Hook):
            @hookimpl(wrapper=True)
            def train_step(self, run: Run) -> Any:
                iterations.append(run.iter)
                return (yield)

        train("before_train_iter", lambda run: run.bus.register(Step()), iteration=1)
        assert iterations == [2, 3]

    def test_every_way_to_register_a_hook_opens_it(self) -> None:
        hooks = [Late(name=name) for name in ("bus", "pm", "trainer")]

        class Register(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 2:
                    run.bus.register(hooks[0])
                    run.bus.pm.register(hooks[1])
                    run.trainer.register_hook(hooks[2])

        toys.trainer(Register(), iterations=3).fit()
        expected = ["before_run", "before_train", "after_train_iter", "after_run", "cleanup"]
        assert [hook.points for hook in hooks] == [expected] * 3

    def test_hook_registered_between_two_iterations_is_opened_at_once(self) -> None:
        bus, late = HookBus(), Late()
        with bus.run(iterations=2):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter")
            bus.register(late)
            assert late.points == ["before_run", "before_train"]
            bus.emit("before_train_iter")
            bus.emit("after_train_iter")
        assert late.points[2:] == ["after_train_iter", "after_run", "cleanup"]

    def test_hook_that_is_registered_again_is_opened_again(self) -> None:
        late = Late()

        def replace(run: Run) -> None:
            run.bus.pm.set_blocked("late")
            run.bus.pm.unblock("late")
            run.bus.register(late)

        train("after_epoch", replace, iteration=2, bus=HookBus([late]))
        first = ["before_run", "before_train", *2 * ["after_train_iter"]]
        assert late.points == [*first, *first[:2], "cleanup", *first[2:], "after_run", "cleanup"]

    def test_function_is_called_at_the_next_event_of_its_point(self) -> None:
        iterations: list[int] = []

        def register(run: Run) -> None:
            for point in ("before_run", "before_train_epoch", "before_train_iter", "after_train_iter"):
                run.bus.on(point, name=point)(lambda run: iterations.append(run.iter))

        train("before_train_iter", register, iteration=2)
        assert iterations == [2, 3, 3]

    def test_writer_receives_the_configuration(self) -> None:
        configs: list[Any] = []

        class Writer(Hook):
            def log_config(self, config: Any) -> None:
                configs.append(config)

        train("after_train_iter", lambda run: run.bus.register(Writer()), config={"lr": 0.1})
        assert configs == [{"lr": 0.1}]

    def test_validation_run_opens_the_run_only(self) -> None:
        late = Recorder()

        class Register(Hook):
            def before_val(self, run: Run) -> None:
                run.bus.register(late)

        toys.trainer(Register(), val_loader=toys.pairs(1), iterations=1).validate()
        assert late.points == ["before_run", "after_run", "cleanup"]


class TestRefusal:
    def test_unmet_precondition_is_refused_as_at_the_start(self) -> None:
        def refuse(register: Callable[[Late], object]) -> str:
            with pytest.raises(ConfigError) as caught:
                register(late := Late(ConfigError(["layer: is missing"])))
            assert late.points == []
            return str(caught.value)

        def register(hook: Late) -> None:
            with HookBus([hook]).run():
                pytest.fail("the loop has started")

        messages = [refuse(register)]
        run = train("after_train_iter", lambda run: messages.append(refuse(run.bus.register)))
        assert messages == ["hook 'late' (module tests.run.test_participants): layer: is missing"] * 2
        assert list(run.bus.hooks) == ["loop"]

    def test_hook_that_validates_is_refused_in_a_run_without_validation(self) -> None:
        class Validate(Hook):
            schedules_validation = True

        bus = HookBus()
        with bus.run(iterations=1), pytest.raises(HookbusError, match=r"hook 'validate' .* no validation function"):
            bus.register(Validate())
        assert bus.hooks == {}

    def test_schedule_without_a_known_limit_is_refused(self) -> None:
        class Ending(Late):
            @hookimpl(when=last)
            def after_epoch(self) -> None: ...

        def refuse(run: Run) -> None:
            message = r"^hook '(ending|late)' at after_epoch: when=last: the run has no known limit"
            with pytest.raises(ConfigError, match=message):
                run.bus.register(late := Ending())
            with pytest.raises(ConfigError, match=message):
                run.bus.on("after_epoch", name="late", when=last)(lambda: None)
            assert (late.points, list(run.bus.hooks)) == ([], ["loop"])

        bus = HookBus()
        with bus.run():
            bus.on("after_train_iter", name="loop")(refuse)
            bus.emit("after_train_iter")

    def test_directory_that_a_hook_requires_is_checked(self) -> None:
        class Filing(Late):
            requires_work_dir = True

        bus, late = HookBus(), Filing()
        with bus.run(), pytest.raises(ConfigError, match="hook 'filing' .* requires a work directory, got none"):
            bus.register(late)
        assert late.points == []

    def test_contradictory_order_is_refused(self) -> None:
        bus = HookBus()
        bus.on("after_train_iter", name="a", before="b")(lambda: None)
        with bus.run(iterations=1):
            with pytest.raises(OrderError):
                bus.on("after_train_iter", name="b", before="a")(lambda: None)
            bus.emit("after_train_iter")
        assert list(bus.hooks) == ["a"]

    @pytest.mark.parametrize("point", ["before_run", "before_train"])
    def test_hook_whose_opening_fails_is_cleaned_up_and_removed(self, point: str) -> None:
        late = Late(failing_point=point)

        def register(run: Run) -> None:
            with pytest.raises(OSError, match="no space left"):
                run.bus.register(late)

        run = train("after_train_iter", register)
        assert late.points == [*OPENING[: OPENING.index(point) + 1], "cleanup"]
        assert list(run.bus.hooks) == ["loop"]

    def test_observer_whose_opening_fails_stays_with_a_warning(self) -> None:
        class Observer(Late):
            observer = True

        late = Observer(failing_point="before_train")
        with pytest.warns(UserWarning, match="hook 'observer' .* failed at before_train: OSError: no space left"):
            train("after_train_iter", lambda run: run.bus.register(late))
        assert late.points == ["before_run", "before_train", "after_train_iter", "after_run", "cleanup"]

    def test_hook_that_skips_iterations_is_refused_if_ranks_do_not_expect_it(self) -> None:
        class Skip(Hook):
            skips_iterations = True

            def after_forward(self) -> None: ...

        run = HookBus().current
        run.request_sync._begun = True
        run.bus.register(skip := Skip())
        with pytest.raises(RequestError, match=r"hook 'skip' may skip iterations at after_forward, which the ranks do"):
            run.request_sync.check_late("skip", skip)


class TestResume:
    def test_late_hook_continues_from_its_state_in_the_checkpoint(self, tmp_path: Path) -> None:
        class Count(Hook):
            count = 0
            start: int | None = None

            def before_train(self) -> None:
                self.start = self.count

            def after_train_iter(self) -> None:
                self.count += 1

            def state_dict(self) -> dict[str, Any]:
                return {"count": self.count}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.count = state["count"]

        def execute(iterations: int, **options: Any) -> Count:
            bus, hook = HookBus([toys.Saver()]), Count()
            with bus.run(iterations=iterations, work_dir=tmp_path, **options) as run:
                while not run.should_stop:
                    bus.emit("after_train_iter")
                    if "count" not in bus.hooks:
                        bus.register(hook)
            return hook

        first, second = execute(4), execute(6, resume="auto")
        # The hook misses iteration 1 in the first run, and iteration 5 in the second.
        assert (first.start, first.count) == (0, 3)
        assert (second.start, second.count) == (3, 4)

    def test_late_hook_is_refused_if_its_state_cannot_be_loaded(self, tmp_path: Path) -> None:
        class Settings(HookConfig):
            limit: int = 1

        class Strict(Hook):
            Config = Settings

            def check_state(self, state: dict[str, Any]) -> None:
                if state["limit"] > self.config.limit:
                    raise ValueError(f"limit {state['limit']}")

            def state_dict(self) -> dict[str, Any]:
                return {"limit": self.config.limit}

        with (bus := HookBus([toys.Saver(), Strict(limit=2)])).run(iterations=1, work_dir=tmp_path):
            bus.emit("after_train_iter")
        with (bus := HookBus([toys.Saver()])).run(iterations=2, work_dir=tmp_path, resume="auto") as run:
            with pytest.raises(HookbusError, match=r"hook 'strict' .* cannot be loaded: ValueError: limit 2"):
                bus.register(Strict())
            assert list(bus.hooks) == ["saver"]
            assert run.orphaned_hook_states["strict"]["state"] == {"limit": 2}


class TestClosing:
    def test_failed_start_closes_only_the_hooks_that_were_opened(self) -> None:
        hooks = [Late(failing_point="before_run" if name == "c" else "", name=name) for name in "abcde"]
        with pytest.raises(OSError, match="no space left"), HookBus(hooks).run():
            pytest.fail("the loop has started")
        closing = ["before_run", "on_exception", "after_run", "cleanup"]
        assert [hook.points for hook in hooks] == [closing, closing, closing, [], []]

    @pytest.mark.parametrize("kind", ["bus", "trainer"])
    def test_refused_start_calls_no_hook(self, kind: str) -> None:
        hooks = [Late(name="a"), Late(ConfigError(["size: no"]), name="b"), Late(name="c")]
        start = toys.trainer(*hooks, iterations=1).fit if kind == "trainer" else HookBus(hooks).run().__enter__
        with pytest.raises(ConfigError, match="size: no"):
            start()
        assert [hook.points for hook in hooks] == [[], [], []]

    def test_hook_without_before_run_is_closed_if_another_one_fails_in_it(self) -> None:
        calls: list[str] = []
        bus = HookBus([Late(failing_point="before_run")])
        bus.on("on_exception", name="a")(lambda: calls.append("on_exception"))
        bus.on("after_run", name="b")(lambda: calls.append("after_run"))
        bus.on("cleanup", name="c")(lambda: calls.append("cleanup"))
        with pytest.raises(OSError, match="no space left"), bus.run():
            pytest.fail("the loop has started")
        assert calls == ["on_exception", "after_run", "cleanup"]

    def test_failed_run_closes_a_late_hook_once(self) -> None:
        def fail(bus: HookBus) -> None:
            with bus.run(iterations=1):
                bus.register(late)
                raise RuntimeError("the loop failed")

        late = Late()
        with pytest.raises(RuntimeError, match="the loop failed"):
            fail(HookBus())
        assert late.points == ["before_run", "on_exception", "after_run", "cleanup"]

    def test_hook_registered_after_a_failure_waits_for_the_next_run(self) -> None:
        bus, late = HookBus(), Late()
        bus.on("on_exception", name="register")(lambda run: run.bus.register(late))
        with pytest.raises(RuntimeError, match="loop"), bus.run():
            raise RuntimeError("the loop failed")
        assert late.points == []
        with bus.run():
            pass
        assert late.points == ["before_run", "after_run", "cleanup"]

    @pytest.mark.parametrize("point", ["after_train_iter", "after_run", "cleanup"])
    @pytest.mark.parametrize("priority", [10, 90])
    def test_hook_that_leaves_at_the_end_receives_cleanup_once(self, point: str, priority: int) -> None:
        late = Late()
        bus = HookBus([late])
        bus.on(point, name="leave", priority=priority)(lambda run: late in bus.hooks.values() and bus.unregister(late))
        with bus.run(iterations=1):
            bus.emit("after_train_iter")
        assert late.points.count("cleanup") == 1

    def test_disabled_hook_that_is_unregistered_later_receives_cleanup_once(self) -> None:
        late, bus = Late(failing_point="after_train_iter", on_error="disable"), HookBus()
        bus.register(late)
        with bus.run(iterations=2):
            with pytest.warns(UserWarning, match="no space left"):
                bus.emit("after_train_iter")
            assert late.points == ["before_run", "before_train", "after_train_iter"]
            bus.unregister(late)
            assert late.points[3:] == ["cleanup"]
            bus.emit("after_train_iter")
        assert late.points[3:] == ["cleanup"]
