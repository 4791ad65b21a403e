"""Runs whose loops are those of a Runner of MMEngine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, Runner

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError, HookbusError
from hookbus.testing import HostTask, RecordingBus, TaskError
from hookbus_ema import EMAHook, SWAHook
from hookbus_mmengine.bridge import MMEngineBridge
from hookbus_schedule import ParamSchedulerHook

from .adapter import MeanLoss, MMEngineAdapter, RequestAt, TaskModule, build_runner

ITERATION = ["before_train_iter", "after_forward", "after_backward"]
STEP = ["before_optimizer_step", "after_optimizer_step"]
VALIDATION = [
    "before_val",
    "before_val_epoch",
    *["before_val_iter", "after_val_iter"] * 3,
    "after_val_epoch",
    "after_val",
]
SAVE = ["before_save_checkpoint", "after_save_checkpoint"]


def attach(bus: HookBus, runner: Runner, **options: Any) -> MMEngineBridge:
    bridge = MMEngineBridge(bus, runner, **options)
    bridge.attach()
    return bridge


def train(bus: HookBus, runner: Runner, **options: Any) -> MMEngineBridge:
    torch.manual_seed(0)
    bridge = attach(bus, runner, **options)
    runner.train()
    return bridge


def weights_of(runner: Runner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in runner.model.parameters()])


def record_gradients(values: list[float]) -> Any:
    def record(run: Any) -> None:
        gradients = [parameter.grad for parameter in run.model.parameters() if parameter.grad is not None]
        values.append(sum(float(gradient.abs().sum()) for gradient in gradients))

    return record


class TestPoints:
    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_points_have_the_documented_order(self, accumulate: int, tmp_path: Path) -> None:
        bus = RecordingBus()
        train(bus, build_runner(HostTask(epochs=1, accumulate=accumulate), tmp_path))
        group = [*[*ITERATION, "after_train_iter"] * (accumulate - 1), *ITERATION, *STEP, "after_train_iter"]
        assert bus.emitted_points == [
            *("before_run", "before_train", "before_epoch", "before_train_epoch"),
            *group * (6 // accumulate),
            *("after_train_epoch", *SAVE, *VALIDATION, "after_epoch"),
            *("after_train", "after_run", "cleanup"),
        ]

    def test_points_receive_batch_loss_and_gradients(self, tmp_path: Path) -> None:
        task, bus = HostTask(epochs=1, accumulate=2), RecordingBus()
        gradients: dict[str, list[float]] = {"after_backward": [], "before_optimizer_step": [], "after_train_iter": []}
        for point, values in gradients.items():
            bus.on(point, name=f"at_{point}")(record_gradients(values))
        train(bus, build_runner(task, tmp_path))
        for point in ("after_forward", "after_backward", "after_train_iter"):
            events = bus.get_arguments(point)
            assert torch.equal(torch.stack([event["loss"].detach() for event in events]), torch.stack(task.losses))
            assert all(torch.equal(event["batch"][0], x) for event, x in zip(events, task.inputs, strict=True))
        assert gradients["before_optimizer_step"] == gradients["after_backward"][1::2]
        assert all(gradients["after_backward"])
        assert gradients["after_train_iter"][1::2] == [0, 0, 0]

    def test_results_of_the_evaluator_are_those_of_the_validation(self, tmp_path: Path) -> None:
        task = HostTask(epochs=1)
        runner = build_runner(task, tmp_path)
        bridge = train(HookBus(), runner)
        inputs, targets = task.val_data().tensors
        expected = nn.functional.cross_entropy(runner.model.model.eval()(inputs), targets)
        assert bridge.active_run.metrics.results["val/loss"] == pytest.approx(expected.item())

    def test_results_that_are_no_numbers_are_reported_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Results(MeanLoss):
            def compute_metrics(self, results: list[Any]) -> dict[str, Any]:
                return {
                    "loss": torch.tensor([0.5]),
                    "classes": [0.1, 0.2],
                    "matrix": np.ones((2, 2)),
                    "best": np.ones(1),
                }

        task, bus = HostTask(), HookBus()
        train(bus, build_runner(task, tmp_path, val_evaluator=[Results(task)]))
        assert bus.current.metrics.results == {"val/loss": 0.5, "val/best": 1.0}
        expected = "MMEngine: the results classes, matrix are not single numbers, and hooks do not receive them."
        assert caplog.messages.count(expected) == 1

    def test_weights_and_averages_are_those_of_a_plain_loop(self, tmp_path: Path) -> None:
        ema, task, plain = EMAHook(momentum=0.9, warm_up=0), HostTask(), HostTask()
        runner = build_runner(task, tmp_path)
        train(HookBus([ema]), runner)

        model = plain.model()
        optimizer = plain.optimizer(model)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        average.update_parameters(model)
        torch.manual_seed(0)
        for _ in range(plain.epochs):
            for inputs, targets in plain.train_loader():
                plain.loss(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
                average.update_parameters(model)
        assert torch.equal(weights_of(runner), torch.cat([p.detach().flatten() for p in model.parameters()]))
        averaged = ema.average.averaged()
        assert averaged is not None
        for name, value in average.module.named_parameters():
            assert torch.equal(averaged[f"model.{name}"], value)

    def test_validation_uses_averaged_weights(self, tmp_path: Path) -> None:
        runner, weights = build_runner(HostTask(epochs=1), tmp_path), []
        bus = HookBus([EMAHook(momentum=0.9, warm_up=0)])
        bus.on("before_val_iter")(lambda: weights.append(weights_of(runner)))
        train(bus, runner)
        assert not torch.equal(weights[0], weights_of(runner))

    def test_each_of_several_optimizers_emits_its_points(self, tmp_path: Path) -> None:
        class TwoOptimizers(TaskModule):
            def train_step(self, data: Any, optim_wrapper: Any) -> dict[str, Tensor]:
                for wrapper in optim_wrapper.values():
                    losses = self._run_forward(data, mode="loss")
                    wrapper.update_params(losses["loss"])
                return losses

        task, bus = HostTask(epochs=1, validate=False), RecordingBus()
        model = TwoOptimizers(task)
        first, second = model.model.layers[0], model.model.layers[3]
        wrappers = {name: OptimWrapper(task.optimizer(part)) for name, part in (("a", first), ("b", second))}
        runner = build_runner(task, tmp_path, model=model, optim_wrapper=OptimWrapperDict(**wrappers))
        bridge = train(bus, runner)
        points = [*ITERATION, *STEP, "after_forward", "after_backward", *STEP, "after_train_iter"]
        assert bus.emitted_points[4 : 4 + len(points)] == points
        assert (bridge.active_run.steps_done, bridge.active_run.optimizers.keys()) == (6, {"a", "b"})

    def test_model_that_calls_backward_itself_emits_the_points(self, tmp_path: Path) -> None:
        class OwnUpdate(TaskModule):
            def train_step(self, data: Any, optim_wrapper: Any) -> dict[str, Tensor]:
                losses: dict[str, Tensor] = self._run_forward(data, mode="loss")
                optim_wrapper.backward(losses["loss"])
                optim_wrapper.step()
                optim_wrapper.zero_grad()
                return losses

        task, bus = HostTask(epochs=1, validate=False), RecordingBus()
        train(bus, build_runner(task, tmp_path, model=OwnUpdate(task)))
        assert bus.emitted_points[4:10] == [*ITERATION, *STEP, "after_train_iter"]


class TestFailures:
    def test_error_of_the_training_reaches_the_hooks(self, tmp_path: Path) -> None:
        bus, runner = RecordingBus(), build_runner(HostTask(fail_at=2), tmp_path)
        with pytest.raises(TaskError) as caught:
            train(bus, runner)
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]
        assert (bus.current.outcome, bus.current.exception) == ("failed", caught.value)

    def test_attributes_of_the_runner_are_restored_after_a_training(self, tmp_path: Path) -> None:
        runner = build_runner(HostTask(fail_at=2), tmp_path)
        with pytest.raises(TaskError):
            train(HookBus(), runner)
        owners = (runner, runner.train_loop, runner.model, runner.optim_wrapper)
        names = {"run", "run_epoch", "run_iter", "train_step", "update_params", "backward", "save_checkpoint"}
        assert not [name for owner in owners for name in names & vars(owner).keys()]

    def test_detached_bridge_leaves_the_runner_alone(self, tmp_path: Path) -> None:
        bus, runner = RecordingBus(), build_runner(HostTask(epochs=1), tmp_path)
        bridge = attach(bus, runner)
        bridge.detach()
        bridge.detach()
        runner.train()
        assert bus.events == []

    def test_second_bus_is_refused(self, tmp_path: Path) -> None:
        bus, runner = HookBus(), build_runner(HostTask(), tmp_path)
        bridge = attach(bus, runner)
        for other in (bus, HookBus()):
            with pytest.raises(
                ConfigError, match=r"bus\.attach: the Runner should be connected with one bus.*a second"
            ):
                attach(other, runner)
        bridge.detach()
        attach(HookBus(), runner)

    def test_other_loops_are_refused(self, tmp_path: Path) -> None:
        class OwnLoop(EpochBasedTrainLoop.__base__):  # type: ignore[misc, name-defined]
            max_epochs = max_iters = 1
            epoch = iter = 0

            def run(self) -> None:
                self.runner.call_hook("before_train")

        task = HostTask(epochs=1, validate=False)
        runner = build_runner(task, tmp_path)
        runner._train_loop = OwnLoop(runner, task.train_loader())
        expected = "train_cfg: the training loop should be an EpochBasedTrainLoop or an IterBasedTrainLoop, got OwnLoop"
        with pytest.raises(ConfigError, match=expected):
            train(HookBus(), runner)

    def test_scheduled_validation_without_validation_data_is_refused(self, tmp_path: Path) -> None:
        from hookbus_eval import EvalHook

        runner = build_runner(HostTask(epochs=1, validate=False), tmp_path)
        with pytest.raises(ConfigError, match=r"hook 'eval': schedules validations.*got val_dataloader=None"):
            train(HookBus([EvalHook()]), runner)

    @pytest.mark.parametrize("validate", [True, False])
    def test_run_can_validate_if_the_runner_has_data(self, tmp_path: Path, validate: bool) -> None:
        bus, answers = HookBus(), list[bool]()
        bus.on("after_train_epoch")(lambda run: answers.append(run.can_validate))
        train(bus, build_runner(HostTask(epochs=1, validate=validate), tmp_path))
        assert answers == [validate]


class Normalized(TaskModule):
    """The model of a task with normalized inputs, which requires targets as most models of MMEngine do."""

    def __init__(self, task: HostTask) -> None:
        super().__init__(task)
        self.norm = nn.BatchNorm1d(task.train_data().tensors[0].shape[1])

    def forward(self, inputs: Tensor, targets: Tensor, mode: str = "tensor") -> Any:
        return super().forward(self.norm(inputs), targets, mode)


def test_statistics_of_an_average_are_those_of_the_losses(tmp_path: Path) -> None:
    task, hook = HostTask(epochs=1), SWAHook(swa_epoch_start=1)
    train(HookBus([hook]), build_runner(task, tmp_path, model=Normalized(task)))
    assert hook.average is not None
    means = [inputs.mean(0) for inputs, _ in task.train_loader()]
    torch.testing.assert_close(hook.average.averaged()["norm.running_mean"], torch.stack(means).mean(0))


class TestResume:
    def test_resumed_training_equals_the_uninterrupted_one(self, tmp_path: Path) -> None:
        def train_until(epochs: int, name: str, resume: bool = False) -> tuple[Tensor, RecordingBus]:
            bus = RecordingBus([EMAHook(momentum=0.9, warm_up=0)])
            result = MMEngineAdapter().train(bus, HostTask(epochs=epochs), tmp_path / name, resume=resume)
            averaged = bus.hooks["ema"].average.averaged()
            weights = [*result.model.parameters(), *averaged.values()]
            return torch.cat([weight.detach().flatten() for weight in weights]), bus

        expected, uninterrupted = train_until(3, "whole")
        train_until(1, "parts")
        weights, resumed = train_until(3, "parts", resume=True)
        assert torch.equal(weights, expected)
        assert resumed.current.metrics.results == uninterrupted.current.metrics.results
        assert (resumed.current.epochs_done, resumed.current.iters_done) == (3, 18)

    def test_checkpoint_is_saved_before_the_validation_which_is_made_up_for(self, tmp_path: Path) -> None:
        train(HookBus(), build_runner(HostTask(epochs=1), tmp_path))
        bus = RecordingBus()
        train(bus, build_runner(HostTask(epochs=1), tmp_path, resume=True))
        assert bus.emitted_points == [
            *("before_run", "after_load_checkpoint", "before_train", *VALIDATION, "after_train", "after_run", "cleanup")
        ]

    def test_best_checkpoint_is_not_validated_again(self, tmp_path: Path) -> None:
        def run(**arguments: Any) -> RecordingBus:
            bus, saving = RecordingBus(), {"type": "CheckpointHook", "save_best": "loss", "rule": "less"}
            train(bus, build_runner(HostTask(epochs=1), tmp_path, default_hooks={"checkpoint": saving}, **arguments))
            return bus

        run()
        bus = run(resume=True, load_from=str(tmp_path / "host/best_loss_epoch_1.pth"))
        assert bus.emitted_points[2:] == ["before_train", "after_train", "after_run", "cleanup"]
        assert bus.current.iters_done == 6

    def test_best_checkpoint_contains_raw_and_averaged_weights(self, tmp_path: Path) -> None:
        saving = {"type": "CheckpointHook", "save_best": "loss", "rule": "less"}
        runner = build_runner(HostTask(epochs=1), tmp_path, default_hooks={"checkpoint": saving})
        train(HookBus([EMAHook(momentum=0.9, warm_up=0)]), runner)
        saved = torch.load(tmp_path / "host/best_loss_epoch_1.pth")
        name = "model.layers.0.weight"
        assert torch.equal(saved["state_dict"][name], runner.model.model.layers[0].weight)
        assert not torch.equal(saved["hookbus"]["run"]["ema_state_dict"][name], saved["state_dict"][name])

    def test_checkpoint_without_hooks_is_reported(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        build_runner(HostTask(epochs=1), tmp_path).train()
        train(HookBus(), build_runner(HostTask(), tmp_path, resume=True))
        assert "The checkpoint of MMEngine was saved without hookbus" in caplog.text


@pytest.mark.parametrize("kind", ["ExponentialLR", "ExponentialMomentum"])
def test_hook_that_schedules_what_the_runner_schedules_is_refused(kind: str, tmp_path: Path) -> None:
    bus = RecordingBus([ParamSchedulerHook(schedulers=[{"type": "ExponentialLR", "gamma": 0.5}])])
    runner = build_runner(HostTask(epochs=1), tmp_path, param_scheduler=[{"type": kind, "gamma": 0.5}])
    expected = r"as does the scheduler ExponentialLR of the Runner\. Set param_scheduler=None, or remove the hook\."
    is_refused = kind == "ExponentialLR"
    with pytest.raises(ConfigError, match=expected) if is_refused else nullcontext():
        train(bus, runner)
    assert ("before_run" in bus.emitted_points) is not is_refused


class TestResumeByCheckpointHook:
    """The mode `checkpoints="hookbus"`."""

    @pytest.mark.parametrize("stop", [6, 8])
    def test_resumed_training_equals_the_uninterrupted_one(self, stop: int, tmp_path: Path) -> None:
        def run(name: str, *hooks: Hook, **options: Any) -> tuple[Tensor, Any]:
            from hookbus_checkpoint import CheckpointHook

            bus = HookBus([EMAHook(momentum=0.9), CheckpointHook(best_metric="loss"), *hooks])
            scheduler = [{"type": "ExponentialLR", "gamma": 0.5}]
            runner = build_runner(HostTask(epochs=3), tmp_path / name, param_scheduler=scheduler)
            train(bus, runner, checkpoints="hookbus", work_dir=tmp_path / name / "hookbus", **options)
            return weights_of(runner), runner

        expected, _ = run("whole")
        run("parts", RequestAt(stop, "stop"))
        weights, runner = run("parts", resume="auto")
        assert torch.equal(weights, expected)
        assert (runner.epoch, runner.iter, runner.optim_wrapper.get_lr()["lr"]) == (3, 18, [0.1 / 4])

    def test_resume_of_the_runner_is_refused(self, tmp_path: Path) -> None:
        from hookbus_checkpoint import CheckpointHook

        build_runner(HostTask(epochs=1), tmp_path).train()
        runner = build_runner(HostTask(), tmp_path, resume=True)
        with pytest.raises(ConfigError, match=r"resumed at iteration 6, got checkpoints='hookbus'"):
            train(HookBus([CheckpointHook()]), runner, checkpoints="hookbus", work_dir=tmp_path / "hookbus")


class TestEvaluation:
    """`runner.val` and `runner.test`."""

    @pytest.mark.parametrize("mode", ["val", "test"])
    def test_points_are_those_of_a_run_that_evaluates(self, mode: str, tmp_path: Path) -> None:
        task, bus = HostTask(), RecordingBus()
        runner = build_runner(task, tmp_path, **describe_test(task))
        attach(bus, runner)
        metrics = getattr(runner, mode)()
        assert bus.emitted_points == [
            *("before_run", f"before_{mode}", f"before_{mode}_epoch"),
            *[f"before_{mode}_iter", f"after_{mode}_iter"] * 3,
            *(f"after_{mode}_epoch", f"after_{mode}", "after_run", "cleanup"),
        ]
        assert (bus.current.mode, bus.current.metrics.results) == (mode, {f"{mode}/loss": metrics["loss"]})

    def test_test_of_a_checkpoint_uses_its_averages(self, tmp_path: Path) -> None:
        ema = EMAHook(momentum=0.9, warm_up=0)
        train(HookBus([ema]), build_runner(HostTask(epochs=1), tmp_path))
        task, weights = HostTask(), []
        checkpoint = str(tmp_path / "host/epoch_1.pth")
        runner = build_runner(task, tmp_path, load_from=checkpoint, **describe_test(task))
        bus = HookBus([EMAHook(momentum=0.9, warm_up=0)])
        bus.on("before_test_iter")(lambda: weights.append(weights_of(runner)))
        attach(bus, runner)
        runner.test()
        averaged = ema.average.averaged()
        assert averaged is not None
        assert torch.equal(weights[0], torch.cat([value.flatten() for value in averaged.values()]))
        assert not torch.equal(weights[0], weights_of(runner))

    def test_failure_is_passed_to_the_hooks(self, tmp_path: Path) -> None:
        task, bus = HostTask(), RecordingBus()
        runner = build_runner(task, tmp_path, **describe_test(task))
        attach(bus, runner)
        runner.model.test_step = lambda data: 1 / 0
        with pytest.raises(ZeroDivisionError):
            runner.test()
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]

    def test_training_and_test_of_one_runner_are_two_runs(self, tmp_path: Path) -> None:
        task, bus = HostTask(epochs=1), RecordingBus()
        runner = build_runner(task, tmp_path, **describe_test(task))
        train(bus, runner)
        runner.test()
        assert bus.emitted_points.count("before_run") == 2
        assert bus.current.iters_done == 6


def describe_test(task: HostTask) -> dict[str, Any]:
    return {"test_dataloader": task.val_loader(), "test_cfg": {}, "test_evaluator": [MeanLoss(task)]}


class TestInvalidLoss:
    @pytest.mark.parametrize(("policy", "outcome"), [("raise", "failed"), ("stop", "aborted"), ("skip", "finished")])
    def test_policies_are_those_of_the_trainer(self, policy: str, outcome: str, tmp_path: Path) -> None:
        from hookbus_guards import CheckInvalidLossHook

        bus = HookBus([CheckInvalidLossHook(interval=1, policy=policy)])
        runner = build_runner(HostTask(nan_at=2), tmp_path)
        try:
            train(bus, runner)
        except HookbusError:
            assert policy == "raise"
        assert bus.current.outcome == outcome
        assert bool(weights_of(runner).isfinite().all()) is (policy == "skip")


class TestMixedPrecision:
    def test_step_that_the_gradient_scaler_skips_is_not_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from mmengine.optim.optimizer import amp_optimizer_wrapper

        # AmpOptimWrapper requires a GPU; its scaler works on the CPU as well.
        monkeypatch.setattr(amp_optimizer_wrapper, "is_cuda_available", lambda: True)
        monkeypatch.setattr(amp_optimizer_wrapper, "GradScaler", lambda **kwargs: torch.amp.GradScaler("cpu", **kwargs))
        task, bus, norms = HostTask(epochs=1, nan_at=2, validate=False), RecordingBus(), []
        bus.on("before_optimizer_step")(record_gradients(norms))
        model = TaskModule(task)
        wrapper = amp_optimizer_wrapper.AmpOptimWrapper(
            optimizer=task.optimizer(model), loss_scale=1024.0, dtype="bfloat16"
        )
        bridge = train(bus, build_runner(task, tmp_path, model=model, optim_wrapper=wrapper))
        assert (bridge.active_run.iters_done, bridge.active_run.steps_done) == (6, 5)
        assert bridge.active_run.scaler is wrapper.loss_scaler
        assert len(norms) == 5
        assert max(norms) < 100  # unscaled
