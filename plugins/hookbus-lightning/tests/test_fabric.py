"""Loops with Fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError, RequestError
from hookbus.testing import RecordingBus
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook


class SkipAt(Hook):
    """Skip one iteration after its forward pass."""

    skips_iterations = True
    number = 1

    def after_forward(self, run: Any) -> None:
        if run.iters_done == self.number:
            run.request_skip_iter()


class Loop:
    """A weight of 1, whose loss in a batch of x is w * x: a step subtracts 0.1 * x."""

    def __init__(self, bus: HookBus, *, fabric: Any = None, **options: Any) -> None:
        self.fabric, self.bus = fabric or Fabric(accelerator="cpu", devices=1), bus
        original = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(original.weight)
        self.model, self.optimizer = self.fabric.setup(original, torch.optim.SGD(original.parameters(), lr=0.1))
        self.bridge: Any = bus.attach(self.fabric, model=self.model, optimizer=self.optimizer, **options)

    def train(self, *values: float, accumulate: int = 1, **arguments: Any) -> float:
        """Train an epoch on batches with these values, and return the weight."""
        with self.bridge.train(epochs=1, **arguments):
            self.bus.emit("before_train_epoch")
            for i, value in enumerate(values):
                batch = torch.full((1, 1), value)
                self.bus.emit("before_train_iter", batch_idx=i, batch=batch)
                if i % accumulate == 0:
                    self.optimizer.zero_grad()
                self.fabric.backward(self.model(batch).sum())
                if (i + 1) % accumulate == 0:
                    self.optimizer.step()
                self.bus.emit("after_train_iter", batch_idx=i, batch=batch)
            self.bus.emit("after_train_epoch")
        return float(self.model.weight.item())


class TestTrain:
    def test_points_of_an_iteration_are_emitted(self) -> None:
        bus = RecordingBus()
        assert Loop(bus).train(2.0) == pytest.approx(0.8)
        assert bus.emitted_points[4:10] == [
            "before_train_iter",
            "after_forward",
            "after_backward",
            "before_optimizer_step",
            "after_optimizer_step",
            "after_train_iter",
        ]
        assert bus.get_arguments("after_forward")[0]["loss"].item() == 2.0

    def test_skipped_iteration_makes_no_step(self) -> None:
        loop = Loop(HookBus([SkipAt()]))
        assert loop.train(1.0, 2.0, 3.0) == pytest.approx(1 - 0.1 * (1 + 3))
        assert (loop.bridge.run.steps_done, loop.bridge.run.iters_done) == (2, 3)

    def test_skipped_iteration_leaves_accumulated_gradients_to_their_step(self) -> None:
        loop = Loop(HookBus([SkipAt()]))
        assert loop.train(1.0, 2.0, 3.0, 4.0, accumulate=2) == pytest.approx(1 - 0.1 * (1 + 3 + 4))
        assert loop.bridge.run.steps_done == 2

    def test_hook_replaces_the_loss(self) -> None:
        bus = HookBus()
        bus.on("after_forward")(lambda run, loss: run.replace_loss(3 * loss))
        assert Loop(bus).train(1.0) == pytest.approx(0.7)

    def test_scheduler_that_is_created_during_the_run_works(self) -> None:
        bus = HookBus()

        @bus.on("before_run")
        def create(run: Any) -> None:
            run.optimizer.scheduler = torch.optim.lr_scheduler.ConstantLR(run.optimizer, factor=0.5)

        assert Loop(bus).train(1.0) == pytest.approx(1 - 0.05)

    def test_scaler_is_that_of_the_precision(self) -> None:
        bus, scaler = RecordingBus(), torch.amp.GradScaler("cpu", init_scale=8.0)
        fabric = Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cpu", scaler))
        loop = Loop(bus, fabric=fabric)
        assert loop.train(1.0, float("inf"), 2.0) == pytest.approx(1 - 0.1 * (1 + 2))
        assert (loop.bridge.run.scaler, loop.bridge.run.steps_done) == (scaler, 2)
        assert bus.get_arguments("after_forward")[0]["loss"].item() == 1.0

    def test_methods_are_restored_after_the_run(self) -> None:
        loop = Loop(HookBus())
        with pytest.raises(RuntimeError, match="broken"), loop.bridge.train(epochs=1):
            raise RuntimeError("broken")
        assert "step" not in vars(loop.optimizer)
        loop.fabric.backward(loop.model(torch.ones(1, 1)).sum())  # outside of a run
        assert loop.bridge.run.outcome == "failed"
        loop.bridge.detach()
        assert not {"backward", "save"} & {*vars(loop.fabric)}

    def test_optimizer_that_was_not_set_up_is_refused(self) -> None:
        loop = Loop(HookBus())
        loop.bridge = loop.bus.attach(loop.fabric)
        plain = torch.optim.SGD(loop.model.parameters(), lr=0.1)
        expected = r"optimizer: should be the result of fabric\.setup, got SGD\."
        with pytest.raises(ConfigError, match=expected):
            loop.train(1.0, optimizer=plain)

    def test_argument_of_attach_is_not_accepted_again(self) -> None:
        loop = Loop(HookBus())
        with pytest.raises(ConfigError, match=r"bridge\.train: got optimizer, as did bus\.attach\."):
            loop.train(1.0, optimizer=loop.optimizer)


class TestRequests:
    def test_validation_function_is_called_on_request(self) -> None:
        bus = HookBus([EvalHook(interval=1)])
        loop = Loop(bus)
        with pytest.raises(ConfigError, match=r"validate: should be the validation function that 'eval' schedules"):
            loop.train(1.0)
        loop.bridge = bus.attach(loop.fabric, model=loop.model, validate=lambda: {"loss": 2.0})
        loop.train(1.0)
        assert loop.bridge.run.metrics["val/loss"] == 2.0

    def test_requested_checkpoint_is_refused(self) -> None:
        bus = HookBus()
        bus.on("after_train_iter")(lambda run: run.request_save())
        with pytest.raises(RequestError, match="Fabric"):
            Loop(bus).train(1.0)


class TestState:
    def test_bridge_is_an_entry_of_the_saved_state(self, tmp_path: Path) -> None:
        bus = RecordingBus([EMAHook(momentum=0.5, warm_up=0)])
        loop = Loop(bus)
        with loop.bridge.train(epochs=2) as run:
            bus.emit("after_train_iter")
            state = {"model": loop.model, "optimizer": loop.optimizer, "hookbus": loop.bridge}
            loop.fabric.save(tmp_path / "last.ckpt", state)
        assert bus.get_arguments("after_save_checkpoint")[0]["path"] == tmp_path / "last.ckpt"

        other = Loop(RecordingBus([EMAHook(momentum=0.5, warm_up=0)]))
        state = {"model": other.model, "optimizer": other.optimizer, "hookbus": other.bridge}
        other.fabric.load(tmp_path / "last.ckpt", state)
        with other.bridge.train(epochs=2) as resumed:
            assert (resumed.iters_done, resumed.resumed, resumed.id) == (1, True, run.id)

    def test_accumulated_gradients_are_in_the_saved_state(self, tmp_path: Path) -> None:
        loop, other = Loop(HookBus()), Loop(HookBus())
        with loop.bridge.train(epochs=1):
            loop.bus.emit("before_train_iter")
            loop.fabric.backward(loop.model(torch.full((1, 1), 3.0)).sum())
            loop.bus.emit("after_train_iter")
            loop.fabric.save(tmp_path / "last.ckpt", {"hookbus": loop.bridge})
        other.fabric.load(tmp_path / "last.ckpt", {"hookbus": other.bridge})
        with other.bridge.train(epochs=1):
            assert other.model.weight.grad.item() == 3.0
