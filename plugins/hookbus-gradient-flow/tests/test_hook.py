import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import Hook
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus, check_hook, fake_training, fingerprint
from hookbus.trainer.trainer import Trainer
from hookbus_gradient_flow import GradientFlowHook
from hookbus_gradient_flow.statistics import compute_gradient_stats
from tests.torch_versions import requires_torch

ONE = torch.ones(1, 1)


class ScalarModel(nn.Module):
    """Model with one weight, initially 1, whose gradient is the input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (x * self.weight).sum()


def get_logged(bus):
    """Return the logged values by step."""
    return {event["step"]: dict(event["values"]) for event in bus.get_arguments("log_scalars")}


def get_maxima(bus, name="weight"):
    return {step: values[f"gradients/{name}/max"] for step, values in get_logged(bus).items()}


class MaximumRecorder(Hook):
    """Store the logged maximum of the weight by step."""

    def __init__(self):
        super().__init__()
        self.maxima = {}

    def log_scalars(self, values, step):
        if "gradients/weight/max" in values:
            self.maxima[step] = values["gradients/weight/max"]


def make_trainer(inputs, hooks, *, model=None, lr=0.0, **options):
    model = model or ScalarModel()
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=lr),
        train_loader=[torch.full((1, 1), float(value)) for value in inputs],
        epochs=1,
        hooks=hooks,
        default_hooks=False,
        device="cpu",
        **{"work_dir": None, **options},
    )


@pytest.mark.slow
def test_hook_passes_the_conformance_checks():
    check_hook(GradientFlowHook, frequency=1)


class TestMeasurement:
    def test_gradients_are_measured_every_frequency_steps(self):
        make_trainer([1, 2, 3, 4, 5], [GradientFlowHook(frequency=2), recorder := MaximumRecorder()]).fit()
        assert recorder.maxima == {2: 2.0, 4: 4.0}

    def test_gradients_of_an_optimizer_with_a_closure_are_measured(self, caplog):
        model = ScalarModel()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

        def closure():
            optimizer.zero_grad()
            loss = model(3 * ONE)
            loss.backward()
            return loss

        bus = RecordingBus([GradientFlowHook(frequency=1)])
        with bus.run(model=model, optimizer=optimizer, epochs=1):
            bus.emit("before_train_iter")
            optimizer.step(closure)
            bus.emit("after_train_iter")
        assert get_maxima(bus) == {1: 3.0}
        assert "no gradient" not in caplog.text

    def test_gradients_are_measured_before_clipping(self):
        make_trainer([8], [GradientFlowHook(frequency=1), recorder := MaximumRecorder()], clip_grad_norm=1.0).fit()
        assert recorder.maxima == {1: 8.0}

    def test_gradients_include_all_micro_batches_of_a_step(self):
        make_trainer([3, 5, 2, 4], [GradientFlowHook(frequency=1), recorder := MaximumRecorder()], accumulate=2).fit()
        assert recorder.maxima == {1: 4.0, 2: 3.0}

    @pytest.mark.parametrize("emits_backward", [True, False])
    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("scale", [1024.0, None])
    def test_gradients_are_divided_by_the_loss_scale(self, emits_backward, fused, scale):
        bus, model = RecordingBus([GradientFlowHook(frequency=1)]), ScalarModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        with bus.run(model=model, optimizer=optimizer, scaler=scaler, iterations=1):
            bus.emit("before_train_iter", batch=ONE)
            scaler.scale(0.5 * model(ONE)).backward()
            if emits_backward:
                bus.emit("after_backward")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            bus.emit("after_train_iter", batch=ONE)
        assert get_maxima(bus) == {1: 0.5}

    def test_gradients_cleared_before_the_end_of_the_iteration_are_measured(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=3)]), ScalarModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=model, optimizer=optimizer, iterations=6) as run:
            for i, batch in run.batches([ONE * k for k in range(1, 7)]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model(batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert get_maxima(bus) == {3: 3.0, 6: 6.0}

    def test_multiple_steps_of_one_iteration_are_measured(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=1)]), ScalarModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=model, optimizer=optimizer, iterations=1):
            bus.emit("before_train_iter", batch=ONE)
            for factor in (1, 2):
                optimizer.zero_grad()
                model(factor * ONE).backward()
                optimizer.step()
            bus.emit("after_train_iter", batch=ONE)
        assert get_maxima(bus) == {1: 1.0, 2: 2.0}

    @pytest.mark.parametrize("emits_backward", [True, False])
    def test_run_without_an_optimizer_is_measured_per_iteration(self, emits_backward):
        bus, model = RecordingBus([GradientFlowHook(frequency=2)]), ScalarModel()
        with bus.run(model=model, iterations=4) as run:
            for i, batch in run.batches([ONE, 2 * ONE, 3 * ONE, 4 * ONE]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model.weight.grad = None
                model(batch).backward()
                if emits_backward:
                    bus.emit("after_backward")
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert get_maxima(bus) == {2: 2.0, 4: 4.0}

    def test_step_skipped_by_the_scaler_is_not_measured(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=1)]), ScalarModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        with bus.run(model=model, optimizer=optimizer, scaler=scaler, iterations=2) as run:
            for i, batch in run.batches([ONE * torch.inf, ONE]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.zero_grad()
                scaler.scale(model(batch)).backward()
                bus.emit("after_backward")
                scaler.step(optimizer)
                scaler.update()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert get_maxima(bus) == {1: 1.0}

    def test_gradients_of_other_steps_are_not_measured(self, monkeypatch):
        measured = []
        monkeypatch.setattr(
            "hookbus_gradient_flow.hook.compute_gradient_stats",
            lambda *args: measured.append(args) or compute_gradient_stats(*args),
        )
        make_trainer([1] * 9, [GradientFlowHook(frequency=4)]).fit()
        assert len(measured) == 2


class TestTargets:
    def test_only_targets_are_measured(self):
        bus = RecordingBus([GradientFlowHook(frequency=1, targets=["2"])])
        fake_training(bus=bus, epochs=1, batches=1)
        assert list(get_logged(bus)[1]) == [
            f"gradients/2.{name}/{statistic}" for name in ("weight", "bias") for statistic in ("mean", "max", "l2")
        ]

    def test_unmatched_target_raises_with_close_matches(self):
        with pytest.raises(ConfigError) as caught:
            fake_training([GradientFlowHook(targets=["2", "0.wieght", "head"])])
        hook = "hook 'gradient_flow' (hookbus-gradient-flow 0.1.0)"
        assert caught.value.problems == [
            f"{hook}: `targets`: '0.wieght' matches no parameter of the model. Did you mean '0.weight' or '2.weight'?",
            f"{hook}: `targets`: 'head' matches no parameter of the model. "
            "Available: 0, 0.bias, 0.weight, 2, 2.bias, 2.weight.",
        ]

    def test_targets_are_names_of_the_uncompiled_model(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=1, targets=["weight"])]), ScalarModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=torch.compile(model, backend="eager"), optimizer=optimizer, iterations=1):
            bus.emit("before_train_iter", batch=ONE)
            model(ONE).backward()
            optimizer.step()
            bus.emit("after_train_iter", batch=ONE)
        assert get_maxima(bus) == {1: 1.0}

    def test_targets_are_names_of_the_model_without_wrapped_blocks(self):
        model = nn.Sequential(nn.DataParallel(ScalarModel()))
        bus = RecordingBus([GradientFlowHook(frequency=1, targets=["0.weight"])])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=model, optimizer=optimizer, iterations=1):
            bus.emit("before_train_iter", batch=ONE)
            model(ONE).backward()
            optimizer.step()
            bus.emit("after_train_iter", batch=ONE)
        assert get_maxima(bus, "0.weight") == {1: 1.0}

    def test_frozen_targets_warn_and_are_not_logged(self, tmp_path, caplog):
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        model[0].requires_grad_(False)
        trainer = Trainer(
            model,
            torch.optim.SGD(model[1].parameters(), lr=0.0),
            step_fn=lambda model, batch: model(batch).sum(),
            train_loader=[ONE] * 3,
            epochs=1,
            hooks=[GradientFlowHook(frequency=1, targets=["0"]), recorder := MaximumRecorder()],
            default_hooks=False,
            device="cpu",
            work_dir=tmp_path,
        )
        trainer.fit()
        assert (recorder.maxima, list(tmp_path.rglob("*.png"))) == ({}, [])
        assert caplog.text.count("step 1: all selected parameters are frozen") == 1
        assert caplog.text.count("are frozen") == 1


class TestChart:
    def test_chart_is_written_to_a_file_and_logged_as_an_image(self, tmp_path):
        bus = RecordingBus([GradientFlowHook(frequency=2)])
        fake_training(bus=bus, epochs=1, batches=4, work_dir=tmp_path)
        directory = tmp_path / "visualization" / "gradient_flow"
        assert sorted(path.name for path in directory.iterdir()) == ["step-00000002.png", "step-00000004.png"]
        images = bus.get_arguments("log_images")
        assert [(event["tag"], event["step"]) for event in images] == [("gradients/gradient_flow", n) for n in (2, 4)]
        np.testing.assert_array_equal(images[0]["images"], np.asarray(Image.open(directory / "step-00000002.png")))

    def test_chart_is_written_to_save_dir(self, tmp_path):
        hooks = [
            GradientFlowHook(frequency=1, save_dir="flow"),
            GradientFlowHook(frequency=1, save_dir=str(tmp_path / "else"), name="other"),
        ]
        fake_training(hooks, epochs=1, batches=1, work_dir=tmp_path / "run")
        assert (tmp_path / "run/visualization/flow/step-00000001.png").exists()
        assert (tmp_path / "else/step-00000001.png").exists()

    def test_chart_directory_cannot_be_left_by_the_name_of_the_hook(self, tmp_path):
        fake_training([GradientFlowHook(frequency=1, name="../../up")], epochs=1, batches=1, work_dir=tmp_path / "run")
        assert (tmp_path / "run/visualization/______up/step-00000001.png").exists()

    def test_chart_is_only_logged_in_a_run_without_a_work_dir(self):
        bus = RecordingBus([GradientFlowHook(frequency=1)])
        fake_training(bus=bus, epochs=1, batches=1)
        assert len(bus.get_arguments("log_images")) == 1

    def test_relative_save_dir_without_a_work_dir_raises(self):
        with pytest.raises(ConfigError, match="save_dir: expected an absolute path .*, got flow. Set `work_dir`, or"):
            fake_training([GradientFlowHook(save_dir="flow")])


class TestWarnings:
    def test_warning_names_the_parameters_and_repeats_only_after_normal_gradients(self, caplog):
        make_trainer([1e4, 1e4, 1, 1e4], [GradientFlowHook(frequency=1)]).fit()
        messages = [record.getMessage() for record in caplog.records if "exploding" in record.getMessage()]
        assert [text.partition(":")[2].partition(":")[0] for text in messages] == [" step 1", " step 4"]
        assert "weight (1e+04)" in messages[0]

    def test_warning_names_parameters_without_a_gradient(self, caplog):
        model = ScalarModel()
        model.unused = nn.Linear(1, 1)
        make_trainer([1], [GradientFlowHook(frequency=1)], model=model).fit()
        assert "step 1: 2 parameters have no gradient: unused.weight, unused.bias." in caplog.text

    def test_parameters_of_another_optimizer_are_not_reported(self, caplog):
        model = nn.ModuleDict({"generator": ScalarModel(), "discriminator": ScalarModel()})
        own, other = (torch.optim.SGD(module.parameters(), lr=0.1) for module in model.values())
        bus = RecordingBus([GradientFlowHook(frequency=1)])
        with bus.run(model=model, optimizer=own, epochs=1):
            bus.emit("before_train_iter")
            for module, optimizer in ((model["discriminator"], other), (model["generator"], own)):
                module(ONE).backward()
                optimizer.step()
                optimizer.zero_grad()
            bus.emit("after_train_iter")
        assert get_maxima(bus, "generator.weight") == {1: 1.0}
        assert "no gradient" not in caplog.text

    def test_warning_names_parameters_with_nan(self, caplog):
        make_trainer([float("nan")], [GradientFlowHook(frequency=1)]).fit()
        assert "step 1: 1 parameter has NaN or infinity in its gradient: weight." in caplog.text

    def test_normal_gradients_log_no_warning(self, caplog):
        make_trainer([1, 2], [GradientFlowHook(frequency=1)]).fit()
        assert "gradient_flow" not in caplog.text


def test_hook_changes_no_weights_and_registers_no_module_hooks():
    without = fake_training(epochs=3)
    with_hook = fake_training([GradientFlowHook(frequency=1)], epochs=3)
    assert fingerprint(with_hook.model.state_dict()) == fingerprint(without.model.state_dict())
    modules = list(with_hook.model.modules())
    assert [len(module._forward_hooks) + len(module._backward_hooks) for module in modules] == [0] * len(modules)


def test_unwritable_directory_warns_and_training_continues(tmp_path):
    (tmp_path / "visualization").mkdir()
    (tmp_path / "visualization" / "gradient_flow").write_text("a file at the path of the directory")
    with pytest.warns(UserWarning, match="hook 'gradient_flow' .* failed at after_optimizer_step"):
        training = fake_training([GradientFlowHook(frequency=6)], work_dir=tmp_path)
    assert training.run.outcome == "finished"


@requires_torch("distributed: fsdp2")
def test_sharded_gradients_are_not_measured(tmp_path, caplog):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Linear(1, 1)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        bus = RecordingBus([GradientFlowHook(frequency=1)])
        optimizer = torch.optim.SGD(model.parameters())
        with bus.run(model=model, optimizer=optimizer, iterations=2, work_dir=tmp_path) as run:
            for i, batch in run.batches([ONE, ONE]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model(batch).sum().backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
    finally:
        torch.distributed.destroy_process_group()

    assert get_logged(bus) == {}
    assert list(tmp_path.rglob("*.png")) == []
    assert "gradient_flow: no gradients are measured, because the parameters are sharded across ranks." in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        ({"name": "a", "save_dir": "charts"}, {"name": "b", "save_dir": "charts/"}),
        ({"name": "a/b"}, {"name": "a b"}),
        ({"name": "a", "save_dir": "b"}, {"name": "b"}),
    ],
    ids=["same save_dir", "same default", "save_dir and default"],
)
def test_two_hooks_with_one_directory_are_an_error(settings, tmp_path):
    with pytest.raises(ConfigError, match=r"save_dir: hook '.*' also writes to .*\. Set another `save_dir`\."):
        fake_training([GradientFlowHook(values) for values in settings], work_dir=tmp_path)


def test_two_hooks_write_their_charts_to_their_own_directories(tmp_path):
    hooks = [
        GradientFlowHook(name="first", frequency=1, targets=["0"]),
        GradientFlowHook(name="second", frequency=2, targets=["2"]),
    ]
    fake_training(hooks, epochs=1, batches=2, work_dir=tmp_path)

    charts = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("step-*.png"))]
    assert [chart.split("/")[-2:] for chart in charts] == [
        ["first", "step-00000001.png"],
        ["first", "step-00000002.png"],
        ["second", "step-00000002.png"],
    ]
