"""State of the hooks and the loop in a checkpoint that the owner of the loop writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run
from hookbus.checkpoint import get_run_state, set_run_state
from hookbus.errors import CheckpointError, LoopError
from hookbus.testing import RecordingBus
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook
from hookbus_schedule import ParamSchedulerHook
from tests import toys


class Counter(Hook):
    """Hook with a state and random numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def after_train_iter(self) -> None:
        self.drawn.append(torch.rand(()).item())

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = list(state["drawn"])


class Host:
    """Trainer that owns the loop and the checkpoints, and calls hookbus back."""

    def __init__(self, *hooks: object) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.bus = HookBus(hooks)
        self.run: Run = self.bus.open(model=self.model, optimizer=self.optimizer, epochs=4)

    def train(self, epochs: range) -> None:
        for _ in epochs:
            self.bus.emit("before_train_epoch")
            for batch, _ in toys.pairs():
                self.bus.emit("before_train_iter", batch=batch)
                self.optimizer.zero_grad()
                loss = self.model(batch).square().mean()
                loss.backward()
                self.optimizer.step()
                self.bus.emit("after_train_iter", batch=batch, outputs={"loss": loss.detach()})
            self.bus.emit("after_train_epoch")
            self.bus.emit("after_epoch")

    def save(self, path: Path) -> None:
        weights = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**weights, "hookbus": get_run_state(self.run)}, path)

    def load(self, path: Path) -> None:
        content = torch.load(path, weights_only=True)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        set_run_state(self.run, content["hookbus"])


def test_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    def hooks() -> tuple[Any, ...]:
        return EMAHook(momentum=0.9, warm_up=0), Counter()

    uninterrupted = Host(*hooks())
    uninterrupted.train(range(4))
    first = Host(*hooks())
    first.train(range(2))
    first.save(tmp_path / "host.pt")
    first.run.close()
    torch.manual_seed(17)
    second = Host(*hooks())
    second.load(tmp_path / "host.pt")
    assert second.run.resumed
    second.train(range(2, 4))

    expected, resumed = uninterrupted.run, second.run
    assert resumed.id == first.run.id
    assert (resumed.epochs_done, resumed.iters_done, resumed.steps_done, resumed.samples_done) == (4, 12, 12, 48)
    assert resumed.metrics.state_dict()["windows"] == expected.metrics.state_dict()["windows"]
    for weights in ("raw", "averaged"):
        one, two = (getattr(run.weights, weights)() for run in (expected, resumed))
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert second.bus.hooks["counter"].drawn == uninterrupted.bus.hooks["counter"].drawn  # type: ignore[attr-defined]
    for host in (uninterrupted, second):
        host.run.close()


def test_state_has_no_weights_but_the_averages() -> None:
    host = Host(EMAHook(momentum=0.5, warm_up=0))
    assert set(get_run_state(host.run)) == {"meta", "hooks", "rng", "loop"}
    host.train(range(1))
    state = get_run_state(host.run)
    assert set(state) == {"meta", "ema_state_dict", "hooks", "rng", "loop"}
    averaged = host.run.weights.averaged()
    assert averaged is not None
    assert all(torch.equal(state["ema_state_dict"][name], value) for name, value in averaged.items())
    host.run.close()


class TestAccumulation:
    """Gradients of micro-batches without an optimizer step."""

    @staticmethod
    def accumulate(host: Host) -> None:
        host.bus.emit("before_train_iter")
        host.model(torch.ones(1, 4)).sum().backward()
        host.bus.emit("after_train_iter")

    def test_gradients_are_restored(self) -> None:
        first = Host()
        self.accumulate(first)
        state = get_run_state(first.run)
        second = Host()
        set_run_state(second.run, state)
        self.accumulate(second)
        assert second.model.weight.grad is not None
        assert torch.equal(second.model.weight.grad, torch.full((2, 4), 2.0))
        for host in (first, second):
            host.run.close()

    def test_gradient_of_another_shape_is_refused(self) -> None:
        host = Host()
        self.accumulate(host)
        state = get_run_state(host.run)
        state["grads"]["weight"] = torch.zeros(3)
        with pytest.raises(CheckpointError, match=r"grads\.weight: expected a tensor of shape \(2, 4\)"):
            set_run_state(host.run, state)
        host.run.close()


def test_state_of_the_loop_is_included() -> None:
    values = [3]
    bus = HookBus()
    pair = (lambda: values[0], lambda value: values.__setitem__(0, value))
    run = bus.open(state={"level": pair})
    state = get_run_state(run)
    values[0] = 7
    set_run_state(run, state)
    assert values == [3]
    run.close()


def test_state_within_an_iteration_is_refused() -> None:
    bus = HookBus()
    run = bus.open()
    bus.emit("before_train_iter")
    with pytest.raises(LoopError, match=r"get_run_state: called within iteration 1, epoch 1\. Call it after"):
        get_run_state(run)
    bus.emit("after_train_iter")
    run.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("hooks"), r"run state: expected .* got a mapping without hooks\. Pass"),
        (lambda state: state["meta"].update(schema=99), "has format version 99"),
        (lambda state: state["loop"]["clock"].update(iters_done=-1), r"loop\.clock\.iters_done"),
        (lambda state: state["hooks"]["counter"].update(version=2), r"hook 'counter': the checkpoint contains state v"),
    ],
    ids=["no hooks", "another format", "an invalid count", "a newer hook"],
)
def test_invalid_state_is_refused_and_the_run_is_unchanged(change: Any, message: str) -> None:
    host = Host(Counter())
    host.train(range(1))
    state = get_run_state(host.run)
    change(state)
    host.train(range(1))
    with pytest.raises(CheckpointError, match=message):
        set_run_state(host.run, state)
    assert (host.run.iters_done, host.run.resumed) == (6, False)
    assert len(host.bus.hooks["counter"].drawn) == 6  # type: ignore[attr-defined]
    host.run.close()


class TestResumeFromState:
    """`bus.open(resume=state)`."""

    @staticmethod
    def train(work_dir: Path, resume: Any = "never") -> tuple[Run, dict[str, Any]]:
        bus = RecordingBus([Counter(), JsonlHook(interval=1)])
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = bus.open(model=model, optimizer=optimizer, work_dir=work_dir, resume=resume)
        bus.emit("before_train_iter")
        optimizer.step()
        bus.emit("after_train_iter", outputs={"loss": torch.tensor(1.0)})
        state = get_run_state(run)
        run.close()
        return run, state

    @staticmethod
    def read_steps(directory: Path) -> list[int]:
        rows = map(json.loads, (directory / "logs" / "metrics.jsonl").read_text().splitlines())
        return [row["step"] for row in rows]

    def test_run_continues_in_its_work_directory(self, tmp_path: Path) -> None:
        first, state = self.train(tmp_path / "run")
        second, _ = self.train(tmp_path / "run", resume=state)
        assert (second.id, second.iters_done, second.resumed) == (first.id, 2, True)
        assert self.read_steps(tmp_path / "run") == [1, 2]
        assert [path.name for path in tmp_path.iterdir()] == ["run"]

    def test_restored_learning_rate_is_kept_by_a_hook_that_builds_a_scheduler(self) -> None:
        def open_run(bus: HookBus, optimizer: Any, **options: Any) -> Run:
            return bus.open(model=nn.Linear(4, 2), optimizer=optimizer, epochs=4, **options)

        def make_bus() -> HookBus:
            warm_up = {"type": "LinearLR", "start_factor": 0.25, "total_iters": 3}
            return HookBus([ParamSchedulerHook(schedulers=[warm_up], interval="epoch")])

        def train_epoch(bus: HookBus, optimizer: Any) -> None:
            bus.emit("before_train_epoch")
            bus.emit("before_train_iter")
            optimizer.step()
            bus.emit("after_train_iter")
            bus.emit("after_train_epoch")

        bus, (optimizer, resumed) = make_bus(), [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.8) for _ in "ab"]
        run = open_run(bus, optimizer)
        train_epoch(bus, optimizer)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)  # a quarter, a half, three quarters, the whole
        resumed.load_state_dict(optimizer.state_dict())
        state = get_run_state(run)
        run.close()
        run = open_run(other := make_bus(), resumed, resume=state)
        assert resumed.param_groups[0]["lr"] == pytest.approx(0.4)
        train_epoch(other, resumed)
        assert resumed.param_groups[0]["lr"] == pytest.approx(0.6)
        run.close()

    def test_rows_after_the_state_are_removed(self, tmp_path: Path) -> None:
        _, state = self.train(tmp_path / "run")
        self.train(tmp_path / "run", resume=state)
        self.train(tmp_path / "run", resume=state)
        assert self.read_steps(tmp_path / "run") == [1, 2]

    def test_work_directory_of_another_run_is_left_unchanged(self, tmp_path: Path) -> None:
        _, state = self.train(tmp_path / "first")
        self.train(tmp_path / "other")
        self.train(tmp_path / "other", resume=state)
        assert self.read_steps(tmp_path / "other") == [1]
        assert self.read_steps(tmp_path / "other-2") == [2]

    def test_checkpoint_event_comes_between_before_run_and_before_train(self) -> None:
        bus = RecordingBus()
        run = bus.open()
        bus.emit("after_train_iter")
        state = get_run_state(run)
        run.close()
        bus.events.clear()
        resumed = bus.open(resume=state, fresh=True)
        bus.emit("before_train")
        assert bus.emitted_points == ["before_run", "after_load_checkpoint", "before_train"]
        assert bus.get_arguments("after_load_checkpoint")[0]["checkpoint"] == state
        assert resumed.iters_done == 1
        resumed.close()

    def test_invalid_state_is_refused_before_any_event(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        with pytest.raises(CheckpointError, match="run state: expected the result of get_run_state"):
            bus.open(resume={"model": {}}, work_dir=tmp_path / "run")
        assert (bus.events, list(tmp_path.iterdir())) == ([], [])
