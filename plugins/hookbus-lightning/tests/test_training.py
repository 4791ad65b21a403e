"""Events of epochs and iterations in the Trainer of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import SumMetric

from hookbus import Hook, HookBus, Run
from hookbus.testing import RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import SWAHook

from .toys import Mean, Validated, attach, make_loader

ITERATION = ["before_train_iter", "after_forward", "after_backward"]
STEP = ["before_optimizer_step", "after_optimizer_step"]


def fit(bus: HookBus, directory: Path, module: Any = None, loader: Any = None, **options: Any) -> Any:
    bridge = attach(bus, directory, **options)
    bridge.host.fit(module or Mean(), loader or make_loader(1.0, 2.0, 3.0))
    return bridge


class TestOrder:
    def test_points_are_those_of_the_trainer_of_hookbus(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        fit(bus, tmp_path, loader=make_loader(1.0))
        assert bus.emitted_points == [
            "before_run",
            "before_train",
            "before_epoch",
            "before_train_epoch",
            *ITERATION,
            *STEP,
            "after_train_iter",
            "after_train_epoch",
            "after_epoch",
            "after_train",
            "after_run",
            "cleanup",
        ]

    def test_accumulated_batches_make_one_step(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        bridge = fit(bus, tmp_path, accumulate_grad_batches=2)  # and one step for the last batch of the epoch
        points = bus.emitted_points[4:-5]
        assert points == [*ITERATION, "after_train_iter", *2 * [*ITERATION, *STEP, "after_train_iter"]]
        assert (bridge.run.iters_done, bridge.run.steps_done, bridge.host.global_step) == (3, 2, 2)

    def test_module_logs_its_values_of_the_epoch_after_after_train_epoch(self, tmp_path: Path) -> None:
        order = []

        class Module(Mean):
            def on_train_epoch_end(self) -> None:
                order.append("module")

        bus = HookBus()
        bus.on("after_train_epoch")(lambda: order.append("after_train_epoch"))
        fit(bus, tmp_path, Module())
        assert order == ["after_train_epoch", "module"]

    @pytest.mark.parametrize(("epochs", "outcome"), [(9, "stopped"), (2, "finished")])
    def test_module_that_stops_lightning_stops_the_run(self, tmp_path: Path, epochs: int, outcome: str) -> None:
        class Module(Mean):
            def on_train_epoch_end(self) -> None:
                self.trainer.should_stop = self.trainer.current_epoch == 1

        run = fit(HookBus(), tmp_path, Module(), max_epochs=epochs).run
        assert (run.outcome, run.epochs_done) == (outcome, 2)

    def test_time_that_is_used_up_stops_the_run(self, tmp_path: Path) -> None:
        run = fit(HookBus(), tmp_path, max_epochs=2, max_time={"seconds": 0}).run
        assert (run.outcome, run.iters_done, run.stop_reasons) == ("stopped", 0, ["loop: stopped by Lightning"])

    def test_max_steps_is_the_limit_of_the_run(self, tmp_path: Path) -> None:
        run = fit(HookBus(), tmp_path, max_epochs=-1, max_steps=4).run
        assert (run.max_iters, run.iters_done, run.epochs_done, run.outcome) == (4, 4, 1, "finished")

    def test_epoch_that_a_limit_of_lightning_truncates_is_not_counted(self, tmp_path: Path) -> None:
        run = fit(
            HookBus(), tmp_path, max_epochs=-1, max_steps=2, accumulate_grad_batches=2, loader=make_loader(*[1.0] * 6)
        ).run
        assert (run.iters_done, run.steps_done, run.epochs_done) == (4, 2, 0)
        assert run.stop_reasons == ["loop: stopped by Lightning"]


class TestValues:
    def test_loss_is_not_divided_by_the_number_of_accumulated_batches(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        fit(bus, tmp_path, accumulate_grad_batches=3, loader=make_loader(0.1, 0.1, 0.1))
        for point in ("after_forward", "after_backward", "after_train_iter"):
            assert [arguments["loss"].item() for arguments in bus.get_arguments(point)] == [
                torch.tensor(0.1).item()
            ] * 3

    def test_outputs_are_those_of_training_step(self, tmp_path: Path) -> None:
        class Module(Mean):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return {"loss": self.compute_loss(batch), "double": 2 * batch[0]}

        bus = RecordingBus()
        fit(bus, tmp_path, Module(), make_loader(3.0))
        for point in ("after_forward", "after_backward", "after_train_iter"):
            (arguments,) = bus.get_arguments(point)
            assert arguments["outputs"]["double"].item() == 6.0
            assert arguments["batch"][0].item() == 3.0
        assert not bus.get_arguments("after_train_iter")[0]["loss"].requires_grad

    def test_gradients_are_present_until_the_end_of_the_iteration(self, tmp_path: Path) -> None:
        seen = {}

        class Read(Hook):
            def after_backward(self, run: Any) -> None:
                seen["backward"] = run.model.weight.grad.item()

            def before_optimizer_step(self, run: Any) -> None:
                seen["step"] = run.model.weight.grad.item()

            def after_train_iter(self, run: Any) -> None:
                seen["end"] = run.model.weight.grad.item()

        fit(HookBus([Read()]), tmp_path, loader=make_loader(8.0), gradient_clip_val=4.0)
        assert seen == {"backward": 8.0, "step": pytest.approx(4.0), "end": pytest.approx(4.0)}

    def test_hook_replaces_the_batch_and_the_loss(self, tmp_path: Path) -> None:
        class Replace(Hook):
            def before_train_iter(self, run: Any, batch: Any) -> None:
                run.replace_batch([10 * batch[0]])

            def after_forward(self, run: Any, loss: Any) -> None:
                run.replace_loss(2 * loss)

        module = Mean()
        fit(HookBus([Replace()]), tmp_path, module, make_loader(1.0, 2.0))
        assert module.weight.item() == pytest.approx(1 - 0.1 * 2 * 10 * (1 + 2))

    def test_step_that_returns_none_makes_no_loss(self, tmp_path: Path) -> None:
        class Module(Mean):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.compute_loss(batch) if batch_idx else None

        bus = RecordingBus()
        with pytest.warns(UserWarning, match="returned `None`"):
            fit(bus, tmp_path, Module(), make_loader(1.0, 2.0))
        assert [arguments["loss"] is None for arguments in bus.get_arguments("after_train_iter")] == [True, False]
        assert len(bus.get_arguments("after_forward")) == 1

    def test_epoch_length_follows_limit_train_batches(self, tmp_path: Path) -> None:
        lengths = []
        bus = HookBus()
        bus.on("before_train")(lambda run: lengths.append((run.epoch_length, len(run.train_loader))))
        fit(bus, tmp_path, limit_train_batches=2)
        assert lengths == [(2, 3)]


class TestPrecision:
    def test_loss_of_bf16_is_that_of_the_step(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        fit(bus, tmp_path, precision="bf16-mixed")
        assert [arguments["loss"].item() for arguments in bus.get_arguments("after_train_iter")] == pytest.approx(
            [1.0, 2.0 * 0.9, 3.0 * 0.7]
        )

    def test_scaler_that_skips_a_step_emits_none(self, tmp_path: Path) -> None:
        from lightning.pytorch.plugins import MixedPrecision

        class Module(Mean):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.compute_loss(batch) * (float("inf") if batch_idx == 1 else 1)

        bus, scaler = RecordingBus(), torch.amp.GradScaler("cpu", init_scale=4.0)
        bridge = fit(bus, tmp_path, Module(), plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
        assert bus.emitted_points.count("before_optimizer_step") == 2
        assert (bridge.run.steps_done, bridge.run.scaler) == (2, scaler)
        losses = [arguments["loss"].item() for arguments in bus.get_arguments("after_forward")]
        assert losses == pytest.approx([1.0, float("inf"), 3.0 * 0.9])


class Manual(Mean):
    """Two optimizers, which train the weight one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for factor, optimizer in enumerate(self.optimizers(), 1):
            optimizer.zero_grad()
            self.manual_backward(factor * self.compute_loss(batch))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.2)]


class TestManualOptimization:
    def test_points_are_emitted_for_each_backward_and_each_optimizer(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        bridge = fit(bus, tmp_path, Manual(), make_loader(1.0))
        part = ["after_forward", "after_backward", *STEP]
        assert bus.emitted_points[4:-5] == ["before_train_iter", *part, *part, "after_train_iter"]
        assert list(bridge.run.optimizers) == ["optimizer_0", "optimizer_1"]
        assert (bridge.run.steps_done, bridge.run.optimizer_steps()) == (
            1,
            {"steps/optimizer_0": 1, "steps/optimizer_1": 1},
        )

    def test_loss_is_that_of_the_backward(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        fit(bus, tmp_path, Manual(), make_loader(2.0))
        second = 2 * 2.0 * (1 - 0.1 * 2.0)
        assert [arguments["loss"].item() for arguments in bus.get_arguments("after_forward")] == pytest.approx(
            [2.0, second]
        )
        assert bus.get_arguments("after_train_iter")[0]["loss"].item() == pytest.approx(second)

    def test_loss_of_a_gradient_scaler_is_unscaled(self, tmp_path: Path) -> None:
        from lightning.pytorch.plugins import MixedPrecision

        bus, scaler = RecordingBus(), torch.amp.GradScaler("cpu", init_scale=1024.0)
        fit(bus, tmp_path, Manual(), make_loader(2.0), plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
        assert bus.get_arguments("after_forward")[0]["loss"].item() == 2.0


class Normalized(pl.LightningModule):
    """Module with a BatchNorm layer and without `forward`, which collects its losses and counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
        self.seen = SumMetric()
        self.losses: list[torch.Tensor] = []
        self.logged: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layers(batch[0]).square().mean() + self.layers[0].weight.sum()
        self.seen.update(1)
        self.losses.append(loss)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        self.logged.append(self.seen.compute().item())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TestAverages:
    def test_statistics_of_an_average_are_computed_by_the_training_step(self, tmp_path: Path) -> None:
        data = [(torch.tensor([[1.0], [2.0]]),), (torch.tensor([[4.0], [9.0]]),)]
        module, hook = Normalized(), SWAHook(swa_epoch_start=2)
        bridge = attach(HookBus([hook]), tmp_path, max_epochs=3)
        bridge.host.fit(module, DataLoader(data, batch_size=None))
        assert hook.average is not None
        average = hook.average.averaged()
        outputs = [inputs @ average["layers.0.weight"].T + average["layers.0.bias"] for (inputs,) in data]
        mean = torch.stack([output.mean(0) for output in outputs]).mean(0)
        torch.testing.assert_close(average["layers.1.running_mean"], mean)
        # The passes over the data after the second and the third epoch are not collected.
        assert (len(module.losses), module.logged) == (6, [2.0, 4.0, 6.0])


class Crash(Hook):
    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == 5:
            raise RuntimeError("crash")


class TestResume:
    """Resumes from a checkpoint of the end of an epoch, or of its validation, in another state of the RNG."""

    @staticmethod
    def read(
        directory: Path, owner: Any, limits: dict[str, int], *, resume: bool = False, hooks: Any = ()
    ) -> list[int]:
        """Train, and return the samples in the order in which they were read."""
        read = list[int]()

        class Recorded(Validated):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                read.append(int(batch[0]))
                return super().training_step(batch, batch_idx)

        is_host = owner != "hookbus"
        saving = pl.callbacks.ModelCheckpoint(directory, save_top_k=-1, save_on_train_epoch_end=owner == "host")
        bridge = attach(
            HookBus([*hooks, *([] if is_host else [CheckpointHook(save_best=False)])]),
            directory,
            options={
                "checkpoints": "host" if is_host else "hookbus",
                "work_dir": directory / "hookbus",
                "resume": "auto" if resume and not is_host else "never",
            },
            enable_checkpointing=is_host,
            callbacks=[saving] if is_host else [],
            **limits,
        )
        loader = DataLoader(TensorDataset(torch.arange(4.0)), shuffle=True)
        checkpoint = next(directory.glob("*.ckpt")) if resume and is_host else None
        # Without a validation, Lightning itself reads another batch in a complete epoch if the steps are limited.
        bridge.host.fit(Recorded(), loader, make_loader(1.0), ckpt_path=checkpoint)
        return read

    @pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
    @pytest.mark.parametrize(
        "limits",
        [
            {"max_epochs": 3},
            {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1},
            {"max_epochs": -1, "max_steps": 11},
            {"max_epochs": 5, "max_steps": 11},
        ],
        ids=["epochs", "reloaded", "steps", "both"],
    )
    @pytest.mark.parametrize("owner", ["host", "host, after the validation", "hookbus"])
    def test_order_of_the_data_is_that_of_the_uninterrupted_training(
        self, owner: str, limits: dict[str, int], tmp_path: Path
    ) -> None:
        torch.manual_seed(1)
        expected = self.read(tmp_path / "whole", owner, limits)
        torch.manual_seed(1)
        with pytest.raises(RuntimeError, match="crash"):
            self.read(tmp_path / "parts", owner, limits, hooks=[Crash()])
        torch.manual_seed(2)
        assert self.read(tmp_path / "parts", owner, limits, resume=True) == expected[4:]
