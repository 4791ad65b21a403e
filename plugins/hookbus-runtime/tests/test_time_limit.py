from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hookbus import HookBus
from hookbus._run.run import Run
from hookbus.checkpoint.state import build_checkpoint, write_checkpoint
from hookbus.testing import check_hook
from hookbus_runtime import TimeLimitHook


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return FakeTime()


def make_hook(clock: FakeTime, **settings: Any) -> TimeLimitHook:
    hook = TimeLimitHook(settings)
    hook.timer = clock
    return hook


def train(run: Run, clock: FakeTime, seconds: float = 3600) -> Iterator[int]:
    """Yield the number of completed iterations, each of which takes an hour, until the run stops."""
    for epoch in run.epochs():
        run.bus.emit("before_train_epoch")
        for i, batch in run.batches([0, 1, 2]):
            run.bus.emit("before_train_iter", batch_idx=i, batch=batch)
            clock.now += seconds
            run.bus.emit("after_train_iter", batch_idx=i, batch=batch)
            yield run.iters_done
        run.bus.emit("after_train_epoch")
        del epoch


def start_run(clock: FakeTime, hook: TimeLimitHook, **options: Any) -> Any:
    bus = HookBus([hook])
    options = {"epochs": 10, **options}
    context = bus.run(**options)
    run = context.__enter__()
    run.clock.timer = clock
    return context, run


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(TimeLimitHook, max_time="4h")


class TestLimit:
    @pytest.mark.parametrize("per_run", [False, True])
    def test_run_stops_at_the_first_iteration_after_the_limit(self, clock: FakeTime, per_run: bool) -> None:
        context, run = start_run(clock, make_hook(clock, max_time="4h", per_run=per_run))
        iterations = list(train(run, clock))
        context.__exit__(None, None, None)

        assert iterations == [1, 2, 3, 4]
        assert (run.outcome, run.stop_reasons) == ("stopped", ["time_limit: the time limit of 4h is reached"])

    def test_run_within_the_limit_finishes(self, clock: FakeTime) -> None:
        context, run = start_run(clock, make_hook(clock, max_time="7h"), epochs=2)
        assert len(list(train(run, clock))) == 6
        context.__exit__(None, None, None)

        assert run.outcome == "finished"


class TestResume:
    @pytest.mark.parametrize(("per_run", "iterations"), [(False, 2), (True, 4)])
    def test_limit_includes_earlier_runs_unless_per_run_is_set(
        self, clock: FakeTime, tmp_path: Path, per_run: bool, iterations: int
    ) -> None:
        path, model = tmp_path / "saved.pth", nn.Linear(1, 1)
        context, run = start_run(clock, make_hook(clock, max_time="4h"), model=model)
        for done in train(run, clock):
            if done == 2:
                break
        write_checkpoint(path, build_checkpoint(run), 1)
        context.__exit__(None, None, None)
        clock.now += 86400
        context, run = start_run(clock, make_hook(clock, max_time="4h", per_run=per_run), model=model, resume=path)
        assert len(list(train(run, clock))) == iterations
        context.__exit__(None, None, None)

    def test_resumed_run_beyond_the_limit_performs_no_iterations(self, clock: FakeTime) -> None:
        hook = make_hook(clock, max_time="1h")
        context, run = start_run(clock, hook)
        assert len(list(train(run, clock))) == 1
        context.__exit__(None, None, None)
        with hook.run.bus.run(epochs=10) as resumed:
            resumed.clock.timer = clock
            assert list(train(resumed, clock)) == []


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_shorter_of_two_limits_stops_the_run(names: str, clock: FakeTime) -> None:
    hooks = {"a": make_hook(clock, max_time="9h", name="a"), "b": make_hook(clock, max_time="4h", name="b")}
    bus = HookBus([hooks[name] for name in names])
    with bus.run(epochs=9) as run:
        run.clock.timer = clock
        assert list(train(run, clock))[-1] == 4
    assert run.stop_reasons == ["b: the time limit of 4h is reached"]
