"""Budget of the hooks: one warning with the times of a sample, in every loop, and nothing outside of the samples."""

from __future__ import annotations

import linecache
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook, HookBus, Run, every, hookimpl
from hookbus._config.load import load_config
from hookbus._run import hook_budget
from hookbus.errors import ConfigError
from hookbus.testing import HostTask, record_trace
from tests import toys
from tests.foreign_trainer import ForeignBridge, ForeignTrainer

pytestmark = pytest.mark.usefixtures("clock")

WAIT, STEP, BETWEEN = 20, 70, 10_000
"""Milliseconds of the wait for data, of the step, and of the code between epochs."""

MEASURED = "Measured: 4 iterations up to 7, 100 ms each."
"""Part of the warning after the first sample of `clock`, with hooks that take 10 ms."""


class Clock:
    """Time that the loops and the hooks of these tests advance, in milliseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now * 1_000_000

    def wait(self, batches: Sequence[Any]) -> Iterator[Any]:
        """Yield batches after the wait for data."""
        for batch in batches:
            self.now += WAIT
            yield batch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Clock:
    """Return a clock, with samples of the iterations 4 to 7, 14 to 17, 24 to 27."""
    clock = Clock()
    monkeypatch.setattr("time.perf_counter_ns", clock)
    monkeypatch.setattr("hookbus._events.instrumentation.perf_counter_ns", clock)
    sizes = {"WARM_UP_ITERATIONS": 3, "SAMPLE_ITERATIONS": 4, "MIN_ITERATIONS": 3, "SAMPLE_INTERVAL": 10}
    for name, value in sizes.items():
        monkeypatch.setattr(hook_budget, name, value)
    caplog.set_level(logging.WARNING)
    return clock


class Slow(Hook):
    """Take some milliseconds in an iteration, and many at the end of an epoch."""

    def __init__(self, clock: Clock, before: int = 8, after: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        self.clock, self.before, self.after = clock, before, after
        self.sampled: list[int] = []

    def before_train_iter(self, run: Run) -> None:
        self.clock.now += self.before
        if run.bus.table.wrappers:
            self.sampled.append(run.iter + 1)

    def after_train_iter(self) -> None:
        self.clock.now += self.after

    def after_train_epoch(self) -> None:
        self.clock.now += BETWEEN


Loop = Callable[..., Run]


def run_loop(clock: Clock, bus: HookBus, *, epochs: int = 3, begins: bool = True, **options: Any) -> Run:
    """Train 8 iterations per epoch in a custom loop."""
    with bus.run(**{"epochs": epochs, **options}) as run:
        execute(clock, bus, run, begins=begins)
    return run


def execute(clock: Clock, bus: HookBus, run: Run, *, begins: bool = True, batches: int = 8) -> None:
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for batch in clock.wait(range(batches)):
            if begins:
                bus.emit("before_train_iter", batch=batch)
            clock.now += STEP
            bus.emit("after_train_iter", batch=batch)
        bus.emit("after_train_epoch")
        clock.now += BETWEEN


def run_opened(clock: Clock, bus: HookBus, **options: Any) -> Run:
    run = bus.open(epochs=3, **options)
    execute(clock, bus, run)
    run.close()
    return run


def run_trainer(clock: Clock, bus: HookBus, **options: Any) -> Run:
    class Loader:
        def __iter__(self) -> Iterator[Any]:
            return clock.wait(toys.pairs(8))

    def step(model: Any, batch: Any) -> Any:
        clock.now += STEP
        return model(batch[0]).sum()

    trainer = toys.trainer(
        *bus.hooks.values(), train_loader=Loader(), step_fn=step, **{"epochs": 3, "order": bus.table.order, **options}
    )
    trainer.fit()
    assert trainer.bus.table.wrappers == []
    return trainer.bus.current


def run_host(clock: Clock, bus: HookBus, **options: Any) -> Run:
    task = HostTask()

    def loss(outputs: Any, targets: Any) -> Any:
        clock.now += STEP
        return task.loss(outputs, targets)

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            return clock.wait([*task.train_loader(), *task.train_loader()][:8])

    model = task.model()
    trainer = ForeignTrainer(model, task.optimizer(model), loss, epochs=3)
    bridge = ForeignBridge(bus, trainer, **options)
    bridge.attach()
    trainer.fit(Loader())
    return bridge.active_run


def get_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "hook_budget" in record.getMessage()]


@pytest.mark.parametrize("order", ["nested", "ascending"])
@pytest.mark.parametrize("loop", [run_loop, run_opened, run_trainer, run_host])
def test_warning_lists_the_hooks_once_in_every_loop(
    loop: Loop, order: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # The other priority is that of a hook outside of all others: the order has no influence.
    heavy, light = Slow(clock, 8, 0, name="heavy", priority=-100), Slow(clock, 0, 2, name="light")
    bus = HookBus([heavy, light], order=order)
    loop(clock, bus, hook_budget=0.05)
    (message,) = get_warnings(caplog)
    # 20 ms for data, 70 ms for the step and 10 ms in hooks; without the 10 s at the end of each epoch.
    assert message == (
        "hook_budget: the hooks take 10.0% of an iteration, more than 5.0%: heavy 8.0% (8.00 ms), light 2.0% (2.00 "
        f"ms). {MEASURED} Increase the intervals of these hooks or remove them; `hookbus trace` shows their calls."
    )
    assert heavy.sampled == [3, 4, 5, 6, 7]
    assert (bus.table.wrappers, bus.table.work_wrappers, list(bus.hooks)) == ([], [], ["heavy", "light"])


@pytest.mark.parametrize("loop", [run_loop, run_opened, run_trainer, run_host])
def test_kept_budget_is_not_reported_and_only_samples_are_measured(
    loop: Loop, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow(clock)
    bus = HookBus([slow])
    loop(clock, bus, hook_budget=0.15)
    assert get_warnings(caplog) == []
    # The first iteration of each sample is not measured. The last sample ends with the run.
    assert slow.sampled == [3, 4, 5, 6, 7, 13, 14, 15, 16, 17, 23, 24]
    assert (bus.table.wrappers, bus.table.work_wrappers) == ([], [])


@pytest.mark.parametrize("loop", [run_loop, run_trainer])
def test_default_measures_nothing(loop: Loop, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow(clock)
    run = loop(clock, HookBus([slow]))
    assert (run.hook_budget, slow.sampled, get_warnings(caplog)) == (None, [], [])


def test_budget_is_one_comparison_outside_of_the_samples(clock: Clock) -> None:
    sources: list[list[str]] = []
    for budget in (None, 0.5):
        bus = HookBus([Slow(clock)])
        with bus.run(iterations=1, hook_budget=budget):
            points = [bus.calls.get(point) for point in ("before_train_iter", "after_train_iter")]
            sources.append([line for call in points for line in linecache.getlines(call.__code__.co_filename)])
    without, with_budget = sources
    added = [line.strip() for line in with_budget if line not in without]
    assert added == ["if _clock.iters_done >= _hook_budget.next: _hook_budget.start()"]
    assert len(with_budget) == len(without) + 1


def test_loop_that_only_ends_iterations_is_measured_from_end_to_end(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    run_loop(clock, HookBus([Slow(clock, 0, 10)]), begins=False, hook_budget=0.05)
    (message,) = get_warnings(caplog)
    assert "the hooks take 10.0%" in message
    assert MEASURED in message


def test_loop_whose_iterations_cannot_be_measured_is_reported_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def run_epochs(begins: bool) -> None:
        bus = HookBus([Slow(clock)])
        with bus.run(epochs=20, hook_budget=0.05, fresh=True) as run:
            execute(clock, bus, run, begins=begins, batches=1)

    def run_without_iterations() -> None:
        bus = HookBus()
        with bus.run(epochs=2, hook_budget=0.05) as run:
            execute(clock, bus, run, batches=0)

    expected = (
        "hook_budget: no iteration could be measured. Emit before_train_iter and after_train_iter in each iteration."
    )
    for loop in (lambda: run_epochs(False), run_without_iterations):
        caplog.clear()
        loop()
        assert get_warnings(caplog) == [expected]
    caplog.clear()
    # Each iteration is an epoch, and begins after the wait for data: 10 of 80 ms.
    run_epochs(True)
    assert "the hooks take 12.5%" in get_warnings(caplog)[0]


def test_validations_and_saves_are_not_part_of_an_iteration(
    clock: Clock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    class Validate(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.request_validation()

        def before_val(self) -> None:
            clock.now += BETWEEN

    class Saver(toys.Saver):
        def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
            clock.now += BETWEEN
            return super().write(run, checkpoint)

    bus = HookBus([Slow(clock, name="slow"), Validate(name="validate"), Saver()])
    run_loop(clock, bus, epochs=1, validate=dict, work_dir=tmp_path / "run", report=False, hook_budget=0.05)
    (message,) = get_warnings(caplog)
    # Nor is the wait for data after them: 10 of 80 ms.
    assert "the hooks take 12.5% of an iteration, more than 5.0%: slow 12.5% (10.0 ms). Measured: 4" in message


def test_single_long_call_is_not_reported_before_it_is_repeated(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Plot(Hook):
        @hookimpl(when=every(5))
        def after_train_iter(self) -> None:
            clock.now += 100

    run_loop(clock, HookBus([Plot()]), epochs=2, hook_budget=0.05)
    (message,) = get_warnings(caplog)
    # Of the iterations 4 to 7 and 14 to 16, 5 and 15 take 190 ms, and all others 90 ms. One of the two calls counts, in
    # 6 of 7 iterations: 7 / 6 * 100 of 830 ms.
    assert "plot 14.1% (16.7 ms). Measured: 7 iterations up to 16, 119 ms each." in message


def test_two_runs_of_a_bus_warn_once_each(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bus = HookBus([Slow(clock)])
    first = run_loop(clock, bus, epochs=1, hook_budget=0.05)
    second = run_loop(clock, bus, epochs=2, hook_budget=0.05)
    assert (first.iters_done, second.iters_done) == (16, 16)
    # The warm-up of the second run begins after its first iteration, number 9.
    assert [f"up to {number}," in message for number, message in zip((7, 15), get_warnings(caplog), strict=True)] == [
        True,
        True,
    ]
    run_loop(clock, bus, epochs=3)
    assert len(get_warnings(caplog)) == 2


def test_resumed_run_begins_with_the_warm_up(clock: Clock, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    options = {"work_dir": tmp_path / "run", "report": False, "hook_budget": 0.05}
    run_trainer(clock, HookBus([toys.Saver(iteration=5)]), epochs=1, **options)
    slow = Slow(clock)
    checkpoint = next((tmp_path / "run").rglob("iter_5.pth"))
    run = run_trainer(clock, HookBus([slow]), epochs=2, resume=checkpoint, **options)
    assert (run.iters_done, slow.sampled) == (16, [8, 9, 10, 11, 12])
    # The first iteration of the epoch, number 9, begins after the wait for its data: 10 of 95 ms on average.
    assert "the hooks take 10.5%" in get_warnings(caplog)[0]


def test_exception_within_a_sample_leaves_nothing_behind(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow(clock)
    bus = HookBus([slow])

    @bus.on("after_train_iter", name="fail")
    def fail(run: Run) -> None:
        if run.iters_done == 7:
            assert run.bus.table.wrappers
            raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        run_loop(clock, bus, hook_budget=0.05)
    assert (bus.table.wrappers, bus.table.work_wrappers, get_warnings(caplog)) == ([], [], [])


def test_hooks_may_come_and_go_within_a_sample(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Late(Slow):
        def before_run(self) -> None:
            self.clock.now += BETWEEN

    late, early = Late(clock, 0, 40, name="late"), Slow(clock, 0, 4, name="early")
    bus = HookBus([early])

    @bus.on("before_train_iter", name="change")
    def change(run: Run) -> None:
        if run.iter + 1 == 5:
            bus.register(late)
            bus.unregister(early)

    run_loop(clock, bus, hook_budget=0.05)
    (message,) = get_warnings(caplog)
    # Iteration 4: 94 ms, of which `early` takes 4. Iteration 5, in which the hooks change: not measured. 6 and 7: 130
    # ms each. Without the longest iteration of each hook: 40 * 3 / 2 of 354 ms.
    assert "late 16.9% (20.0 ms)" in message
    assert "Measured: 3 iterations up to 7, 118 ms each." in message
    assert bus.table.wrappers == []


def test_trace_of_the_same_run_is_complete_and_not_measured(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bus = HookBus([Slow(clock, name="slow")])
    with record_trace(bus) as trace:
        run_loop(clock, bus, hook_budget=0.05)
    (row,) = [row for row in trace.summarize().in_iterations if row.point == "before_train_iter"]
    assert (row.hook, row.calls) == ("slow", 23)
    (message,) = get_warnings(caplog)
    assert "more than 5.0%: slow 10.0% (10.0 ms). Measured" in message
    assert bus.table.wrappers == []


def test_ranks_other_than_0_measure_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookbus.distributed.collectives.Collectives.is_main", False)
    assert run_loop(clock, HookBus([Slow(clock)]), epochs=1, hook_budget=0.05).hook_budget is None


@pytest.mark.parametrize(("number", "omitted"), [(5, ""), (6, ", and 1 other."), (7, ", and 2 others.")])
def test_number_of_listed_hooks_is_limited(
    number: int, omitted: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    run_loop(clock, HookBus([Slow(clock, name=f"slow_{i}") for i in range(number)]), epochs=1, hook_budget=0.05)
    (message,) = get_warnings(caplog)
    assert message.count("(10.0 ms)") == 5
    assert omitted in message
    assert ("other" in message) == bool(omitted)


@pytest.mark.parametrize("value", [0, 1, 2, -0.1, float("nan"), True, "0.05"])
def test_invalid_share_is_refused(value: Any) -> None:
    message = "hook_budget: should be a share between 0 and 1, got"
    for create in (lambda: toys.trainer(hook_budget=value), lambda: HookBus().run(hook_budget=value)):
        with pytest.raises(ConfigError, match=message):
            create()


def test_invalid_share_in_a_run_file_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("training:\n  epochs: 1\n  hook_budget: 2\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:3:16: training\.hook_budget: should be less than 1, got 2\."):
        load_config(path)


def test_budget_of_a_run_that_only_evaluates_is_refused() -> None:
    with pytest.raises(ConfigError, match="hook_budget: has no effect in a run of mode 'val'"):
        HookBus().run(mode="val", hook_budget=0.05)


def test_budget_of_a_host_does_not_apply_to_its_evaluations() -> None:
    bridge = ForeignBridge(HookBus(), object(), hook_budget=0.05, batch_tokens=len)  # type: ignore[arg-type]
    run = bridge.open(mode="val")
    assert (run.mode, run.hook_budget) == ("val", None)
    bridge.close()


def test_short_run_has_no_warning(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    toys.trainer(Slow(clock), fast_dev_run=True, hook_budget=0.05).fit()
    assert get_warnings(caplog) == []
