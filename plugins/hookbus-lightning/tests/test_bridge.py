"""Runs, requests and checkpoints of the bridge to the Trainer of Lightning."""

from __future__ import annotations

import logging
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from hookbus import Hook, HookBus, Run
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook
from hookbus_schedule import ParamSchedulerHook, YOLOXLrUpdaterHook

from .toys import Mean, Validated, attach, make_loader, make_trainer


class Request(Hook):
    """Call a method of the run after iterations."""

    def __init__(self, method: str, *iterations: int, **arguments: Any) -> None:
        super().__init__()
        self.method, self.iterations, self.arguments = method, iterations, arguments

    def after_train_iter(self, run: Any) -> None:
        if run.iters_done in self.iterations:
            getattr(run, self.method)(**self.arguments)


class TestAttach:
    def test_callback_precedes_those_that_save_checkpoints(self, tmp_path: Path) -> None:
        from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder, ModelCheckpoint

        callbacks = [ModelCheckpoint(tmp_path), EarlyStopping("val_loss"), LearningRateFinder()]
        bridge = attach(HookBus(), tmp_path, callbacks=callbacks, enable_checkpointing=True)
        names = [type(callback).__name__ for callback in bridge.host.callbacks]
        assert names == ["LearningRateFinder", "HookbusCallback", "EarlyStopping", "ModelCheckpoint"]

    def test_second_bus_is_refused(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path)
        HookBus().attach(trainer)
        with pytest.raises(ConfigError, match=r"bus\.attach: a bus is attached to this trainer\."):
            HookBus().attach(trainer)

    def test_running_trainer_is_refused(self, tmp_path: Path) -> None:
        class Module(Mean):
            def on_train_start(self) -> None:
                with pytest.raises(ConfigError, match=r"bus\.attach: the trainer is running"):
                    HookBus().attach(self.trainer)

        make_trainer(tmp_path).fit(Module(), make_loader(1.0))

    def test_detached_bridge_emits_nothing(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        bridge = attach(bus, tmp_path)
        bridge.detach()
        bridge.detach()
        bridge.host.fit(Mean(), make_loader(1.0))
        assert (bus.emitted_points, bridge.run) == ([], None)

    def test_trainer_that_is_copied_to_other_processes_is_refused(self, tmp_path: Path) -> None:
        bridge = attach(HookBus(), tmp_path)
        with pytest.raises(ConfigError, match=r"Trainer\(strategy=\): .* Use 'ddp'"):
            pickle.dumps(bridge.host.callbacks)

    def test_subclass_of_the_trainer_is_attached(self, tmp_path: Path) -> None:
        from lightning.pytorch import Trainer

        class Own(Trainer):
            pass

        trainer = Own(accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_progress_bar=False)
        assert HookBus().attach(trainer).host is trainer


class TestRun:
    def test_second_fit_continues_the_counts(self, tmp_path: Path) -> None:
        bus, module = RecordingBus(), Mean()
        bridge = attach(bus, tmp_path)
        bridge.host.fit(module, make_loader(1.0, 1.0))
        bridge.host.fit_loop.max_epochs = 3
        bridge.host.fit(module, make_loader(1.0, 1.0))
        assert (bridge.run.epochs_done, bridge.run.iters_done, bridge.host.global_step) == (3, 6, 6)
        assert bus.emitted_points.count("before_run") == bus.emitted_points.count("cleanup") == 2

    def test_other_trainer_starts_from_scratch(self, tmp_path: Path) -> None:
        bus = HookBus()
        for _ in range(2):
            bridge = attach(bus, tmp_path)
            bridge.host.fit(Mean(), make_loader(1.0, 1.0))
        assert bridge.run.iters_done == 2

    def test_complete_training_emits_before_and_after_train(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        bridge = attach(bus, tmp_path)
        bridge.host.fit(module := Mean(), make_loader(1.0))
        bus.events.clear()
        bridge.host.fit(module, make_loader(1.0))
        assert bus.emitted_points == ["before_run", "before_train", "after_train", "after_run", "cleanup"]

    def test_exception_ends_the_run_and_restores_the_trainer(self, tmp_path: Path) -> None:
        class Module(Mean):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                raise ValueError("broken batch")

        bus = RecordingBus()
        bridge = attach(bus, tmp_path)
        with pytest.raises(ValueError, match="broken batch"):
            bridge.host.fit(Module(), make_loader(1.0))
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]
        assert bridge.run.outcome == "failed"
        assert not {"save_checkpoint", "training_step"} & {*vars(bridge.host), *vars(bridge.host.strategy)}

    def test_hyperparameters_are_the_configuration(self, tmp_path: Path) -> None:
        class Module(Mean):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.save_hyperparameters()

        bridge = attach(HookBus(), tmp_path)
        bridge.host.fit(Module(width=3), make_loader(1.0))
        assert bridge.run.config == {"width": 3}

    @pytest.mark.parametrize("automatic", [True, False])
    def test_hook_that_schedules_what_lightning_schedules_is_refused(self, tmp_path: Path, automatic: bool) -> None:
        class Module(Mean):
            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
                return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                loss = super().training_step(batch, batch_idx)
                if not automatic:
                    self.manual_backward(loss)
                    self.optimizers().step()
                return loss

        bus, module = RecordingBus([ParamSchedulerHook(schedulers=[{"type": "ConstantLR"}])]), Module()
        module.automatic_optimization = automatic  # the module steps the scheduler itself otherwise, if it does
        bridge = attach(bus, tmp_path)
        expected = r"as does the scheduler ConstantLR of Lightning\. Return no lr_scheduler from configure_optimizers"
        with pytest.raises(ConfigError, match=expected) if automatic else nullcontext():
            bridge.host.fit(module, make_loader(1.0))
        assert ("before_run" in bus.emitted_points) is not automatic

    def test_second_owner_of_the_learning_rate_is_reported_once(self, tmp_path: Path) -> None:
        class Module(Mean):
            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
                return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]

        bridge = attach(HookBus([YOLOXLrUpdaterHook(warmup_epochs=0, num_last_epochs=0)]), tmp_path)
        with pytest.raises(ConfigError) as caught:
            bridge.host.fit(Module(), make_loader(1.0))
        assert str(caught.value).count("sets the learning rate") == 1

    def test_several_schedulers_are_named(self, tmp_path: Path) -> None:
        class Module(Mean):
            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
                return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]

        bridge = attach(HookBus(), tmp_path)
        bridge.host.fit(Module(), make_loader(1.0))
        assert list(bridge.run.schedulers) == ["scheduler_0", "scheduler_1"]
        assert isinstance(bridge.run.optimizer, torch.optim.SGD)


class TestRequests:
    @pytest.mark.parametrize("options", [{}, {"min_epochs": 2}, {"min_steps": 5}])
    def test_stop_takes_effect_after_the_iteration(self, tmp_path: Path, options: Any) -> None:
        bridge = attach(HookBus([Request("request_stop", 2, reason="enough")]), tmp_path, max_epochs=3, **options)
        bridge.host.fit(Mean(), make_loader(1.0, 1.0, 1.0))
        run = bridge.run
        assert (run.iters_done, run.epochs_done, run.outcome, run.stop_reasons) == (
            2,
            0,
            "stopped",
            ["request: enough"],
        )
        assert (bridge.host.min_epochs or 0, bridge.host.min_steps) == (
            options.get("min_epochs", int("min_steps" in options)),
            options.get("min_steps"),
        )

    @pytest.mark.parametrize("folder", [None, "own"])
    def test_requested_checkpoint_contains_the_iteration(self, tmp_path: Path, folder: str | None) -> None:
        from lightning.pytorch.callbacks import ModelCheckpoint

        bus = RecordingBus([Request("request_save", 2)])
        callbacks = [ModelCheckpoint(tmp_path / folder, save_top_k=0)] if folder else []
        bridge = attach(bus, tmp_path, callbacks=callbacks, enable_checkpointing=bool(folder))
        bridge.host.fit(Mean(), make_loader(1.0, 1.0, 1.0))
        (arguments,) = bus.get_arguments("after_save_checkpoint")
        path = tmp_path / (folder or "checkpoints") / "hookbus-epoch=0-step=2.ckpt"
        assert Path(arguments["path"]) == path
        saved = torch.load(path, weights_only=True)
        assert saved["global_step"] == saved["callbacks"]["hookbus"]["loop"]["clock"]["iters_done"] == 2

    @pytest.mark.parametrize("iteration", [1, 2, 3, 4])
    def test_aborted_training_is_neither_validated_nor_saved(self, tmp_path: Path, iteration: int) -> None:
        from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

        class Module(Validated):
            def configure_optimizers(self) -> Any:
                optimizer = super().configure_optimizers()
                return {
                    "optimizer": optimizer,
                    "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
                    "monitor": "val_loss",
                }

        saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2, save_last=True)
        callbacks = [saving, ModelCheckpoint(tmp_path / "best", monitor="val_loss"), EarlyStopping("val_loss")]
        bus = RecordingBus([Request("request_abort", iteration)])
        bridge = attach(bus, tmp_path, callbacks=callbacks, enable_checkpointing=True, max_epochs=3)
        trainer = bridge.host
        trainer.fit(Module(), make_loader(1.0, 1.0), make_loader(1.0))
        epochs = (iteration - 1) // 2  # those that were complete before
        assert (bridge.run.outcome, bridge.run.iters_done) == ("aborted", iteration)
        assert len(bus.get_arguments("after_val")) == epochs
        saved = {path.name for folder in ("saved", "best") for path in (tmp_path / folder).glob("*.ckpt")}
        assert saved == ({"epoch=0-step=2.ckpt", "last.ckpt"} if epochs else set())
        assert (trainer.limit_val_batches, "on_validation_end" in vars(saving)) == (1.0, False)  # restored

    @pytest.mark.parametrize("error", [None, ValueError])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"save_last": True},
            {"save_last": "link"},
            {"monitor": "val_loss"},
            {"every_n_train_steps": 2},
            {"save_on_train_epoch_end": False},
        ],
        ids=str,
    )
    def test_refused_checkpoint_replaces_no_other(
        self, tmp_path: Path, options: dict[str, Any], error: type[Exception] | None
    ) -> None:
        from lightning.pytorch.callbacks import ModelCheckpoint

        class Refuse(Hook):
            def before_save_checkpoint(self, run: Run) -> None:
                if run.iters_done > 2 and error is not None:
                    raise error
                if run.iters_done > 2:
                    run.request_abort()

        saving = ModelCheckpoint(tmp_path / "saved", **options)
        arguments = {"callbacks": [saving], "enable_checkpointing": True, "max_epochs": 3}
        bridge = attach(HookBus([Refuse()]), tmp_path, **arguments)
        with nullcontext() if error is None else pytest.raises(error):
            bridge.host.fit(Validated(), make_loader(1.0, 1.0), make_loader(1.0))
        assert (bridge.run.outcome, bridge.run.iters_done) == ("aborted" if error is None else "failed", 4)
        saved = sorted(path.name for path in (tmp_path / "saved").iterdir())
        assert saved == ["epoch=0-step=2.ckpt", *(["last.ckpt"] if "save_last" in options else [])]
        assert all(torch.load(path, weights_only=True)["global_step"] == 2 for path in (tmp_path / "saved").iterdir())
        if error is None:
            assert saving.best_model_path == str(tmp_path / "saved/epoch=0-step=2.ckpt")

    def test_refused_checkpoint_of_the_user_is_not_saved(self, tmp_path: Path) -> None:
        from lightning.pytorch.callbacks import Callback

        class Save(Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                trainer.save_checkpoint(tmp_path / "user.ckpt")

        bus = HookBus()
        bus.on("before_save_checkpoint")(lambda run: run.request_abort())
        bridge = attach(bus, tmp_path, callbacks=[Save()])
        bridge.host.fit(Validated(), make_loader(1.0, 1.0), make_loader(1.0))
        assert (bridge.run.outcome, bridge.run.iters_done, list(tmp_path.iterdir())) == ("aborted", 1, [])

    def test_hook_that_skips_iterations_is_refused(self, tmp_path: Path) -> None:
        class Skip(Hook):
            skips_iterations = True

        with pytest.raises(ConfigError, match="skips iterations, which Lightning cannot do"):
            attach(HookBus([Skip()]), tmp_path)


class TestHostCheckpoints:
    @pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
    @pytest.mark.parametrize("iteration", [3, 4])
    def test_state_is_restored_with_the_checkpoint(self, tmp_path: Path, iteration: int) -> None:
        def train(epochs: int, path: str | None = None) -> Any:
            bus = HookBus([EMAHook(momentum=0.5, warm_up=0)])
            bridge = attach(bus, tmp_path, max_epochs=epochs)
            bridge.host.fit(module := Mean(), make_loader(3.0, 3.0), ckpt_path=path)
            return bus, bridge.run, module

        bus = HookBus([EMAHook(momentum=0.5, warm_up=0), Request("request_save", iteration)])
        bridge = attach(bus, tmp_path, max_epochs=2)
        bridge.host.fit(Mean(), make_loader(3.0, 3.0))
        path = str(tmp_path / f"checkpoints/hookbus-epoch=1-step={iteration}.ckpt")
        (parts, run, module), (whole, _, reference) = train(3, path), train(3)
        assert (run.iters_done, run.epochs_done, run.resumed) == (6, 3, True)
        assert torch.equal(module.weight, reference.weight)
        averages = [bus.hooks["ema"].average.averaged()["weight"] for bus in (parts, whole)]
        assert torch.equal(*averages)

    def test_checkpoint_without_hooks_is_reported(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        trainer = make_trainer(tmp_path)
        trainer.fit(Mean(), make_loader(1.0))
        trainer.save_checkpoint(tmp_path / "plain.ckpt")
        bridge = attach(HookBus(), tmp_path, max_epochs=2)
        with caplog.at_level(logging.WARNING, "hookbus"):
            bridge.host.fit(Mean(), make_loader(1.0), ckpt_path=str(tmp_path / "plain.ckpt"))
        assert caplog.text.count("The checkpoint of Lightning was saved without hookbus") == 1

    def test_state_of_an_earlier_call_is_not_used(self, tmp_path: Path) -> None:
        bridge = attach(HookBus(), tmp_path)
        bridge.set_state({"broken": 1})  # of a call that failed before it began to train
        bridge.host.fit(Mean(), make_loader(1.0))
        assert bridge.run.outcome == "finished"

    def test_checkpoint_within_an_iteration_has_no_state(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Module(Mean):
            def on_before_optimizer_step(self, optimizer: Any) -> None:
                self.trainer.save_checkpoint(tmp_path / "within.ckpt")

        bridge = attach(HookBus(), tmp_path)
        with caplog.at_level(logging.WARNING, "hookbus"):
            bridge.host.fit(Module(), make_loader(1.0))
        assert "hookbus" not in torch.load(tmp_path / "within.ckpt", weights_only=True)["callbacks"]
        assert "within iteration 1, without the state of the hooks" in caplog.text

    def test_checkpoint_after_the_training_has_the_state_of_its_end(self, tmp_path: Path) -> None:
        bridge = attach(HookBus([EMAHook(momentum=0.5, warm_up=0)]), tmp_path)
        bridge.host.fit(Mean(), make_loader(4.0))
        bridge.host.save_checkpoint(tmp_path / "end.ckpt")
        state = torch.load(tmp_path / "end.ckpt", weights_only=True)["callbacks"]["hookbus"]
        assert state["loop"]["clock"]["epochs_done"] == 1
        assert state["ema_state_dict"]["weight"].item() == pytest.approx(0.8)

    def test_checkpoint_after_a_failure_is_reported(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        from lightning.pytorch.callbacks import Callback

        class Module(Mean):
            def on_train_epoch_end(self) -> None:
                raise ValueError("broken")

        class SaveOnException(Callback):
            def on_exception(self, trainer: Any, *_: Any) -> None:
                trainer.save_checkpoint(tmp_path / "failed.ckpt")

        bridge = attach(HookBus(), tmp_path, callbacks=[SaveOnException()])
        with caplog.at_level(logging.WARNING, "hookbus"), pytest.raises(ValueError, match="broken"):
            bridge.host.fit(Module(), make_loader(1.0))
        assert "hookbus" not in torch.load(tmp_path / "failed.ckpt", weights_only=True)["callbacks"]
        assert "after a failure, without the state of the hooks" in caplog.text


class TestCheckpointsOfHookbus:
    def train(self, directory: Path, epochs: int, *, resume: str = "never", path: Any = None) -> Any:
        options = {"checkpoints": "hookbus", "work_dir": directory / "run", "resume": resume}
        bus = HookBus([CheckpointHook(interval=1, best_metric="loss")])
        bridge = attach(bus, directory, options=options, max_epochs=epochs)
        torch.manual_seed(0)
        bridge.host.fit(module := Validated(), make_loader(1.0, 3.0), make_loader(1.0), ckpt_path=path)
        return bridge, module

    def test_run_resumes_with_the_position_of_lightning(self, tmp_path: Path) -> None:
        self.train(tmp_path, 1)
        bridge, module = self.train(tmp_path, 3, resume="auto")
        _, reference = self.train(tmp_path / "whole", 3)
        assert torch.equal(module.weight, reference.weight)
        assert (bridge.host.global_step, bridge.host.current_epoch, bridge.run.iters_done) == (6, 3, 6)

    def test_path_of_a_checkpoint_of_lightning_is_refused(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path)
        trainer.fit(Validated(), make_loader(1.0), make_loader(1.0))
        trainer.save_checkpoint(tmp_path / "plain.ckpt")
        with pytest.raises(ConfigError, match=r"trainer\.fit: ckpt_path should be None with checkpoints='hookbus'"):
            self.train(tmp_path, 2, path=str(tmp_path / "plain.ckpt"))
