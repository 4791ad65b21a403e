import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import Hook
from hookbus.errors import ConfigError
from hookbus.loop import Trainer
from hookbus.testing import RecordingBus, check_hook, fake_training, fingerprint
from hookbus_gradient_flow import GradientFlowHook
from hookbus_gradient_flow.flow import measure

ONE = torch.ones(1, 1)


class One(nn.Module):
    """A weight that begins at 1 and whose gradient is the input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (x * self.weight).sum()


def recorded(bus):
    """By step, the values of each record."""
    return {each["step"]: dict(each["values"]) for each in bus.arguments("log_scalars")}


def largest(bus, name="weight"):
    return {step: values[f"gradients/{name}/max"] for step, values in recorded(bus).items()}


class Recorder(Hook):
    """Keeps what is recorded, and how often the hook before it has measured."""

    def __init__(self):
        super().__init__()
        self.largest = {}

    def log_scalars(self, values, step):
        if "gradients/weight/max" in values:
            self.largest[step] = values["gradients/weight/max"]


def trainer_on(inputs, hooks, *, model=None, lr=0.0, **options):
    model = model or One()
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


def test_it_keeps_the_promises_of_hooks():
    check_hook(GradientFlowHook, frequency=1)


class TestReading:
    def test_is_due_every_so_many_updates(self):
        trainer_on([1, 2, 3, 4, 5], [GradientFlowHook(frequency=2), seen := Recorder()]).fit()
        assert seen.largest == {2: 2.0, 4: 4.0}

    def test_sees_those_that_an_optimizer_has_made_by_itself(self, caplog):
        model = One()
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
        assert largest(bus) == {1: 3.0}
        assert "no gradient" not in caplog.text

    def test_sees_the_gradients_before_they_are_clipped(self):
        trainer_on([8], [GradientFlowHook(frequency=1), seen := Recorder()], clip_grad_norm=1.0).fit()
        assert seen.largest == {1: 8.0}

    def test_sees_those_of_all_micro_batches_of_an_update(self):
        trainer_on([3, 5, 2, 4], [GradientFlowHook(frequency=1), seen := Recorder()], accumulate=2).fit()
        assert seen.largest == {1: 4.0, 2: 3.0}

    @pytest.mark.parametrize("says_backward", [True, False])
    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("scale", [1024.0, None])
    def test_divides_the_scale_out_wherever_it_reads(self, says_backward, fused, scale):
        bus, model = RecordingBus([GradientFlowHook(frequency=1)]), One()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        with bus.run(model=model, optimizer=optimizer, scaler=scaler, iterations=1):
            bus.emit("before_train_iter", batch=ONE)
            scaler.scale(0.5 * model(ONE)).backward()
            if says_backward:
                bus.emit("after_backward")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            bus.emit("after_train_iter", batch=ONE)
        assert largest(bus) == {1: 0.5}

    def test_sees_the_gradients_of_a_loop_that_clears_them_before_the_iteration_ends(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=3)]), One()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=model, optimizer=optimizer, iterations=6) as run:
            for i, batch in run.batches([ONE * k for k in range(1, 7)]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model(batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert largest(bus) == {3: 3.0, 6: 6.0}

    def test_sees_each_of_several_updates_of_one_iteration(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=1)]), One()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=model, optimizer=optimizer, iterations=1):
            bus.emit("before_train_iter", batch=ONE)
            for factor in (1, 2):
                optimizer.zero_grad()
                model(factor * ONE).backward()
                optimizer.step()
            bus.emit("after_train_iter", batch=ONE)
        assert largest(bus) == {1: 1.0, 2: 2.0}

    @pytest.mark.parametrize("says_backward", [True, False])
    def test_needs_no_optimizer_of_the_run(self, says_backward):
        bus, model = RecordingBus([GradientFlowHook(frequency=2)]), One()
        with bus.run(model=model, iterations=4) as run:
            for i, batch in run.batches([ONE, 2 * ONE, 3 * ONE, 4 * ONE]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model.weight.grad = None
                model(batch).backward()
                if says_backward:
                    bus.emit("after_backward")
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert largest(bus) == {2: 2.0, 4: 4.0}

    def test_is_not_done_for_an_update_that_the_scaler_leaves_out(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=1)]), One()
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
        assert largest(bus) == {1: 1.0}

    def test_measures_nothing_where_it_is_not_due(self, monkeypatch):
        measured = []
        monkeypatch.setattr("hookbus_gradient_flow.hook.measure", lambda *args: measured.append(args) or measure(*args))
        trainer_on([1] * 9, [GradientFlowHook(frequency=4)]).fit()
        assert len(measured) == 2


class TestTargets:
    def test_are_looked_at_alone(self):
        bus = RecordingBus([GradientFlowHook(frequency=1, targets=["2"])])
        fake_training(bus=bus, epochs=1, batches=1)
        assert list(recorded(bus)[1]) == [
            f"gradients/2.{p}/{k}" for p in ("weight", "bias") for k in ("mean", "max", "l2")
        ]

    def test_that_stand_for_nothing_end_the_run_with_the_names_that_are_near(self):
        with pytest.raises(ConfigError) as caught:
            fake_training([GradientFlowHook(targets=["2", "0.wieght", "head"])])
        hook = "hook 'gradient_flow' (hookbus-gradient-flow 0.1.0)"
        assert caught.value.problems == [
            f"{hook}: the target '0.wieght' stands for no parameter of the model. "
            "Did you mean '0.weight' or '2.weight'?",
            f"{hook}: the target 'head' stands for no parameter of the model. "
            "Available: 0, 0.bias, 0.weight, 2, 2.bias, 2.weight.",
        ]

    def test_have_the_names_of_a_model_that_is_compiled(self):
        bus, model = RecordingBus([GradientFlowHook(frequency=1, targets=["weight"])]), One()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=torch.compile(model, backend="eager"), optimizer=optimizer, iterations=1):
            bus.emit("before_train_iter", batch=ONE)
            model(ONE).backward()
            optimizer.step()
            bus.emit("after_train_iter", batch=ONE)
        assert largest(bus) == {1: 1.0}

    def test_that_are_frozen_are_said_and_nothing_is_recorded(self, tmp_path, caplog):
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        model[0].requires_grad_(False)
        trainer = Trainer(
            model,
            torch.optim.SGD(model[1].parameters(), lr=0.0),
            step_fn=lambda model, batch: model(batch).sum(),
            train_loader=[ONE] * 3,
            epochs=1,
            hooks=[GradientFlowHook(frequency=1, targets=["0"]), seen := Recorder()],
            default_hooks=False,
            device="cpu",
            work_dir=tmp_path,
        )
        trainer.fit()
        assert (seen.largest, list(tmp_path.rglob("*.png"))) == ({}, [])
        assert caplog.text.count("step 1: every parameter that is looked at is frozen") == 1
        assert caplog.text.count("is frozen") == 1


class TestChart:
    def test_is_a_file_of_the_run_and_a_picture_for_everyone(self, tmp_path):
        bus = RecordingBus([GradientFlowHook(frequency=2)])
        fake_training(bus=bus, epochs=1, batches=4, work_dir=tmp_path)
        folder = tmp_path / "visualization" / "gradient_flow"
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000002.png", "step-00000004.png"]
        shown = bus.arguments("log_images")
        assert [(each["tag"], each["step"]) for each in shown] == [("gradients/gradient_flow", n) for n in (2, 4)]
        np.testing.assert_array_equal(shown[0]["images"], np.asarray(Image.open(folder / "step-00000002.png")))

    def test_goes_where_save_dir_says(self, tmp_path):
        hooks = [
            GradientFlowHook(frequency=1, save_dir="flow"),
            GradientFlowHook(frequency=1, save_dir=str(tmp_path / "else"), name="other"),
        ]
        fake_training(hooks, epochs=1, batches=1, work_dir=tmp_path / "run")
        assert (tmp_path / "run/visualization/flow/step-00000001.png").exists()
        assert (tmp_path / "else/step-00000001.png").exists()

    def test_never_leaves_its_folder_by_the_name_of_the_hook(self, tmp_path):
        fake_training([GradientFlowHook(frequency=1, name="../../up")], epochs=1, batches=1, work_dir=tmp_path / "run")
        assert (tmp_path / "run/visualization/______up/step-00000001.png").exists()

    def test_has_no_file_in_a_run_that_writes_none(self):
        bus = RecordingBus([GradientFlowHook(frequency=1)])
        fake_training(bus=bus, epochs=1, batches=1)
        assert len(bus.arguments("log_images")) == 1

    def test_cannot_go_into_a_folder_below_nothing(self):
        with pytest.raises(ConfigError, match="no place for save_dir: flow. Give work_dir to the run, or an absolute"):
            fake_training([GradientFlowHook(save_dir="flow")])


class TestWarnings:
    def test_name_the_parameters_and_are_said_again_only_after_all_was_well_in_between(self, caplog):
        trainer_on([1e4, 1e4, 1, 1e4], [GradientFlowHook(frequency=1)]).fit()
        told = [each.getMessage() for each in caplog.records if "exploding" in each.getMessage()]
        assert [text.partition(":")[2].partition(":")[0] for text in told] == [" step 1", " step 4"]
        assert "weight (1e+04)" in told[0]

    def test_tell_of_parameters_that_the_loss_does_not_use(self, caplog):
        model = One()
        model.unused = nn.Linear(1, 1)
        trainer_on([1], [GradientFlowHook(frequency=1)], model=model).fit()
        assert "step 1: 2 parameters have no gradient: unused.weight, unused.bias." in caplog.text

    def test_say_nothing_of_those_that_another_optimizer_updates(self, caplog):
        model = nn.ModuleDict({"generator": One(), "discriminator": One()})
        own, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in model.values())
        bus = RecordingBus([GradientFlowHook(frequency=1)])
        with bus.run(model=model, optimizer=own, epochs=1):
            bus.emit("before_train_iter")
            for part, optimizer in ((model["discriminator"], other), (model["generator"], own)):
                part(ONE).backward()
                optimizer.step()
                optimizer.zero_grad()
            bus.emit("after_train_iter")
        assert largest(bus, "generator.weight") == {1: 1.0}
        assert "no gradient" not in caplog.text

    def test_tell_of_nan_in_a_layer(self, caplog):
        trainer_on([float("nan")], [GradientFlowHook(frequency=1)]).fit()
        assert "step 1: 1 parameter has NaN or infinity in its gradient: weight." in caplog.text

    def test_are_not_made_where_all_is_well(self, caplog):
        trainer_on([1, 2], [GradientFlowHook(frequency=1)]).fit()
        assert "gradient_flow" not in caplog.text


def test_the_weights_are_the_same_bit_for_bit_with_the_hook_and_no_module_has_a_hook():
    without = fake_training(epochs=3)
    with_it = fake_training([GradientFlowHook(frequency=1)], epochs=3)
    assert fingerprint(with_it.model.state_dict()) == fingerprint(without.model.state_dict())
    modules = list(with_it.model.modules())
    assert [len(each._forward_hooks) + len(each._backward_hooks) for each in modules] == [0] * len(modules)


def test_a_disk_that_is_full_is_a_warning_and_training_goes_on(tmp_path):
    (tmp_path / "visualization").mkdir()
    (tmp_path / "visualization" / "gradient_flow").write_text("a file in the place of the folder")
    with pytest.warns(UserWarning, match="hook 'gradient_flow' .* failed at after_optimizer_step"):
        trained = fake_training([GradientFlowHook(frequency=6)], work_dir=tmp_path)
    assert trained.run.outcome == "finished"


def test_gradients_that_are_spread_over_processes_are_not_looked_at(tmp_path, caplog):
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

    assert recorded(bus) == {}
    assert list(tmp_path.rglob("*.png")) == []
    assert "gradient_flow shows nothing: this process has only a part of each gradient." in caplog.text
