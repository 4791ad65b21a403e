"""Runs of training loops that use Accelerate."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate", reason="accelerate is not installed: run `make bridges HOST=accelerate`")

from accelerate import Accelerator
from accelerate.utils import DistributedType, ProjectConfiguration

from hookbus import Hook, HookBus, Run
from hookbus.errors import ConfigError, HookbusError, RequestError
from hookbus.testing import RecordingBus
from hookbus_ema import EMAHook
from hookbus_guards import CheckInvalidLossHook

from .toys import Loop, attach

ITERATION = ["before_train_iter", "after_forward", "after_backward", "after_train_iter"]
STEP = ["before_optimizer_step", "after_optimizer_step"]


class SkipAt(Hook):
    """Skip micro-batches before their backward pass."""

    skips_iterations = True

    def __init__(self, *iterations: int, point: str = "after_forward") -> None:
        super().__init__()
        self.iterations, self.point = iterations, point

    def before_train_iter(self, run: Run) -> None:
        if self.point == "before_train_iter" and run.iter in self.iterations:
            run.request_skip_iter()

    def after_forward(self, run: Run) -> None:
        if self.point == "after_forward" and run.iter in self.iterations:
            run.request_skip_iter()


class RequestAt(Hook):
    """Call a function of the run after an iteration."""

    def __init__(self, iteration: int, request: Any) -> None:
        super().__init__()
        self.iteration, self.request = iteration, request

    def after_train_iter(self, run: Run) -> None:
        if run.iter == self.iteration:
            self.request(run)


class TestPoints:
    def test_backward_emits_its_points_and_steps_count_accumulation(self) -> None:
        bus, accelerator = RecordingBus(), Accelerator(cpu=True, gradient_accumulation_steps=2)
        run = Loop(accelerator, attach(bus, accelerator))()
        points = [point for point in bus.emitted_points if point in (*ITERATION, *STEP)]
        assert points == 2 * [*ITERATION, *ITERATION[:3], *STEP, ITERATION[3]]
        assert (run.steps_done, run.iters_done) == (2, 4)

    def test_loss_is_that_of_the_micro_batch(self) -> None:
        bus, accelerator = RecordingBus(), Accelerator(cpu=True, gradient_accumulation_steps=4)
        loop = Loop(accelerator, attach(bus, accelerator))
        with torch.no_grad():
            loop.model.weight.fill_(3.0)
        loop()
        for point in ("after_forward", "after_backward"):
            assert [float(arguments["loss"].detach()) for arguments in bus.get_arguments(point)] == [
                3.0,
                6.0,
                12.0,
                24.0,
            ]

    def test_loss_that_a_hook_replaces_is_used(self) -> None:
        class Double(Hook):
            def after_forward(self, run: Run, loss: Any) -> None:
                run.replace_loss(2 * loss)

        accelerator = Accelerator(cpu=True)
        loop = Loop(accelerator, attach(HookBus([Double()]), accelerator))
        loop()
        assert loop.weight == -2.0 * (1 + 2 + 4 + 8)

    def test_hooks_receive_the_optimizer_and_scheduler_of_torch(self) -> None:
        accelerator = Accelerator(cpu=True)
        run = Loop(accelerator, attach(HookBus(), accelerator))()
        assert type(run.optimizer) is torch.optim.SGD
        assert type(run.scheduler) is torch.optim.lr_scheduler.StepLR
        assert (run.device, run.host) == (accelerator.device, run.host)

    def test_named_optimizers_are_unwrapped_by_name(self) -> None:
        accelerator = Accelerator(cpu=True)
        bridge = attach(HookBus(), accelerator)
        models = {name: torch.nn.Linear(1, 1) for name in ("G", "D")}
        optimizers = {name: accelerator.prepare(torch.optim.SGD(m.parameters())) for name, m in models.items()}
        with bridge.train(model=models, optimizer=optimizers) as run:
            assert [type(part) for part in run.optimizers.values()] == [torch.optim.SGD] * 2

    def test_backward_outside_of_a_run_emits_nothing(self) -> None:
        bus, accelerator = RecordingBus(), Accelerator(cpu=True)
        attach(bus, accelerator)
        weight = torch.ones(1, requires_grad=True)
        accelerator.backward(3 * weight.sum())
        assert (weight.grad, bus.emitted_points) == (torch.tensor([3.0]), [])

    def test_detach_restores_the_accelerator(self) -> None:
        accelerator = Accelerator(cpu=True)
        bridge = attach(HookBus(), accelerator)
        bridge.detach()
        assert not {"backward", "save_state"} & vars(accelerator).keys()
        assert accelerator._custom_objects == []

    def test_bf16_computes_in_autocast_and_keeps_the_weights(self) -> None:
        bus = RecordingBus([EMAHook(momentum=0.5, warm_up=0)])
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        loop = Loop(accelerator, attach(bus, accelerator), batches=[1.0, 0.001])
        run = loop()
        assert loop.weight == pytest.approx(-1.001, rel=2**-8)
        assert run.steps_done == 2
        with run.weights.applied():
            assert loop.weight == pytest.approx(-0.7505, rel=2**-8)  # 0.5 * (0.5 * 0 - 0.5 * 1) - 0.5 * 1.001


class TestSkipping:
    @pytest.mark.parametrize("point", ["before_train_iter", "after_forward"])
    def test_skipped_iteration_makes_no_step(self, point: str) -> None:
        accelerator = Accelerator(cpu=True)
        loop = Loop(accelerator, attach(HookBus([SkipAt(1, point=point)]), accelerator))
        run = loop()
        assert (loop.weight, run.steps_done, loop.scheduler_steps) == (-(1.0 + 4 + 8), 3, 3)

    def test_next_micro_batch_completes_the_group(self) -> None:
        bus = RecordingBus([SkipAt(1)])
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        loop = Loop(accelerator, attach(bus, accelerator), batches=[1.0, 2.0, 4.0, 8.0, 16.0])
        run = loop()
        steps = [arguments["step"] for arguments in bus.get_arguments("after_train_iter")]
        assert (loop.weight, steps, run.steps_done) == (-(1.0 + 4 + 8 + 16) / 2, [0, 0, 1, 1, 2], 2)

    def test_loop_without_accumulate_steps_again_after_a_skip(self) -> None:
        accelerator = Accelerator(cpu=True)
        bridge = attach(HookBus([SkipAt(0, 2)]), accelerator)
        loop = Loop(accelerator, bridge)
        with bridge.train(model=loop.model, optimizer=loop.optimizer) as run:
            for value in (1.0, 2.0, 4.0):
                bridge.bus.emit("before_train_iter")
                accelerator.backward(loop.model(torch.tensor([[value]])).sum())
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                bridge.bus.emit("after_train_iter")
        assert (loop.weight, run.steps_done, accelerator.sync_gradients) == (-2.0, 1, True)

    def test_guard_skips_an_invalid_loss(self) -> None:
        guard = CheckInvalidLossHook(interval=1, policy="skip")
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        loop = Loop(accelerator, attach(HookBus([guard]), accelerator), batches=[1.0, math.nan, 2.0])
        loop()
        assert (guard.skipped, loop.weight) == (1, -1.5)


class TestCheckpoints:
    @pytest.mark.parametrize("in_run", [False, True])
    def test_state_of_hooks_travels_in_the_checkpoint(self, tmp_path: Path, in_run: bool) -> None:
        def train(epochs: int, load: bool, save_at: int = -1) -> tuple[Run, float]:
            accelerator = Accelerator(cpu=True)
            hooks = [EMAHook(momentum=0.5, warm_up=0), RequestAt(save_at, lambda run: run.request_save())]
            loop = Loop(accelerator, attach(HookBus(hooks), accelerator, work_dir=None if load else tmp_path))
            if load and in_run:
                loop.in_run = lambda run: accelerator.load_state(tmp_path / "checkpoints" / "step_4")
            elif load:
                loop.before_run = lambda: accelerator.load_state(tmp_path / "checkpoints" / "step_4")
            run = loop(epochs)
            with run.weights.applied():
                return run, loop.weight

        _, expected = train(3, load=False, save_at=3)
        run, average = train(3, load=True)
        assert (run.epochs_done, run.steps_done, average) == (3, 12, expected)

    def test_checkpoint_without_hooks_is_loaded_before_the_bus_is_attached(self, tmp_path: Path) -> None:
        Accelerator(cpu=True).save_state(tmp_path)
        accelerator = Accelerator(cpu=True)
        accelerator.load_state(tmp_path)
        attach(HookBus(), accelerator)
        with pytest.raises(RuntimeError, match=r"Number of custom checkpoints") as caught:
            accelerator.load_state(tmp_path)
        assert "saved without hookbus before bus.attach" in caught.value.__notes__[0]

    def test_save_is_reported_with_its_path(self, tmp_path: Path) -> None:
        bus, accelerator = RecordingBus(), Accelerator(cpu=True)
        loop = Loop(accelerator, attach(bus, accelerator), in_run=lambda run: accelerator.save_state(str(tmp_path)))
        loop()
        assert bus.get_arguments("after_save_checkpoint")[0]["path"] == tmp_path
        assert len(bus.get_arguments("before_save_checkpoint")) == 1

    def test_requested_save_is_in_the_work_directory(self, tmp_path: Path) -> None:
        accelerator = Accelerator(cpu=True)
        bus = HookBus([RequestAt(1, lambda run: run.request_save("now"))])
        Loop(accelerator, attach(bus, accelerator, work_dir=tmp_path))()
        assert (tmp_path / "checkpoints" / "step_2" / "custom_checkpoint_0.pkl").exists()

    def test_requested_save_is_in_the_project_directory(self, tmp_path: Path) -> None:
        project = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
        accelerator = Accelerator(cpu=True, project_config=project)
        bus = HookBus([RequestAt(1, lambda run: run.request_save("now"))])
        Loop(accelerator, attach(bus, accelerator))()
        assert (tmp_path / "checkpoints" / "checkpoint_0" / "custom_checkpoint_0.pkl").exists()

    @pytest.mark.parametrize("error", [None, ValueError])
    def test_refused_checkpoint_replaces_no_other(self, tmp_path: Path, error: type[Exception] | None) -> None:
        class SaveTwice(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iter in (1, 2):
                    run.request_save()

            def before_save_checkpoint(self, run: Run) -> None:
                if run.iter == 2 and error is not None:
                    raise error
                if run.iter == 2:
                    run.request_abort()

        project = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, total_limit=1)
        bridge = attach(HookBus([SaveTwice()]), Accelerator(project_config=project))
        with nullcontext() if error is None else pytest.raises(error):
            Loop(bridge.host, bridge)()
        assert (bridge.run.outcome, bridge.run.iters_done) == ("aborted" if error is None else "failed", 3)
        state = torch.load(tmp_path / "checkpoints/checkpoint_0/custom_checkpoint_0.pkl", weights_only=True)
        assert state["loop"]["clock"]["iters_done"] == 2
        assert len(list((tmp_path / "checkpoints").iterdir())) == 1

    def test_requested_save_without_a_directory_names_the_hook(self) -> None:
        accelerator = Accelerator(cpu=True)
        bus = HookBus([RequestAt(1, lambda run: run.request_save("now"))])
        with pytest.raises(RequestError, match=r"request_at: now: requested a checkpoint.*work_dir="):
            Loop(accelerator, attach(bus, accelerator))()

    def test_checkpoint_within_a_group_continues_the_group(self, tmp_path: Path) -> None:
        from hookbus_checkpoint import CheckpointHook

        def train(stop: bool, resume: str) -> tuple[float, int]:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
            hooks = [CheckpointHook(save_best=False), *([RequestAt(1, lambda run: run.request_stop())] if stop else [])]
            options = {"checkpoints": "hookbus", "work_dir": tmp_path, "resume": resume}
            loop = Loop(accelerator, attach(HookBus(hooks), accelerator, **options), batches=[1.0, 2.0, 4.0])
            return loop.weight, loop().steps_done

        assert train(stop=True, resume="never")[1] == 0
        assert train(stop=False, resume="auto")[1] == 1

    def test_gradients_of_a_group_travel_in_the_checkpoint(self, tmp_path: Path) -> None:
        def train(*hooks: Hook, **options: Any) -> float:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
            bridge = attach(HookBus(hooks), accelerator, work_dir=tmp_path / "run")
            loop = Loop(accelerator, bridge, batches=[1.0, 2.0, 4.0], **options)
            loop()
            return loop.weight

        def save_and_stop(run: Run) -> None:
            run.request_save()
            run.request_stop()

        assert train(RequestAt(1, save_and_stop)) == 0.0
        checkpoint = tmp_path / "run" / "checkpoints" / "step_0"
        accelerator_loads = {"in_run": lambda run: run.host.host.load_state(checkpoint)}
        assert train(**accelerator_loads) == pytest.approx(-(1 + 2 + 4) / 3)


class TestRequests:
    def test_stop_ends_the_loop_after_the_iteration(self) -> None:
        accelerator = Accelerator(cpu=True)
        bus = HookBus([RequestAt(1, lambda run: run.request_stop("enough"))])
        run = Loop(accelerator, attach(bus, accelerator))(epochs=3)
        assert (run.iters_done, run.outcome, run.stop_reasons) == (2, "stopped", ["request_at: enough"])

    def test_stop_of_the_epoch_ends_the_epoch_only(self) -> None:
        accelerator = Accelerator(cpu=True)
        bus = HookBus([RequestAt(1, lambda run: run.request_stop_epoch())])
        run = Loop(accelerator, attach(bus, accelerator))(epochs=2)
        assert (run.iters_done, run.epochs_done) == (6, 2)

    def test_requested_validation_calls_the_function_of_the_loop(self) -> None:
        bus, accelerator = RecordingBus([RequestAt(1, lambda run: run.request_validation())]), Accelerator(cpu=True)
        Loop(accelerator, attach(bus, accelerator), train={"validate": lambda: {"loss": 0.5}})()
        assert [dict(arguments["metrics"]) for arguments in bus.get_arguments("after_val")] == [{"val/loss": 0.5}]

    def test_requested_validation_without_a_function_is_an_error(self) -> None:
        accelerator = Accelerator(cpu=True)
        bus = HookBus([RequestAt(1, lambda run: run.request_validation())])
        with pytest.raises(RequestError, match=r"Pass validate="):
            Loop(accelerator, attach(bus, accelerator))()

    def test_scheduled_validation_without_a_function_is_refused(self) -> None:
        class Schedules(Hook):
            schedules_validation = True

        accelerator = Accelerator(cpu=True)
        bus = RecordingBus([Schedules()])
        with pytest.raises(
            ConfigError, match=r"validate: should be the validation function that 'schedules' schedules"
        ):
            Loop(accelerator, attach(bus, accelerator))()
        assert bus.emitted_points == []


class TestRefusals:
    def test_optimizer_that_was_not_prepared_is_refused(self) -> None:
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(1, 1)
        bridge = attach(HookBus(), accelerator)
        with (
            pytest.raises(ConfigError, match=r"optimizer: should be the result of accelerator\.prepare, got SGD"),
            bridge.train(model=model, optimizer=torch.optim.SGD(model.parameters())),
        ):
            pass

    def test_unsupported_type_of_distributed_training_is_refused(self) -> None:
        accelerator = Accelerator(cpu=True)
        accelerator.state.distributed_type = DistributedType.FSDP
        with pytest.raises(ConfigError, match=r"accelerator: should train without .*, got distributed_type FSDP"):
            attach(HookBus(), accelerator)

    def test_error_of_the_loop_reaches_the_hooks_and_is_raised(self) -> None:
        bus, accelerator = RecordingBus(), Accelerator(cpu=True)

        def fail(run: Run) -> None:
            raise ValueError("out of memory")

        with pytest.raises(ValueError, match="out of memory"):
            Loop(accelerator, attach(bus, accelerator), in_run=fail)()
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]

    def test_state_that_is_none_of_a_run_is_refused(self) -> None:
        bus, accelerator = RecordingBus(), Accelerator(cpu=True)
        bridge = attach(bus, accelerator)
        bridge.load_state_dict({"epoch": 3})
        with pytest.raises(HookbusError, match="without meta"):
            Loop(accelerator, bridge)()
        assert bus.emitted_points == []
