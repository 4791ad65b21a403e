"""Tests of the validation of a trainer without training."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, hookimpl
from hookbus._events.schedules import last
from hookbus.checkpoint.state import build_checkpoint, read_checkpoint, write_checkpoint
from hookbus.errors import (
    CheckpointError,
    ConfigError,
    HookbusError,
    LoopError,
    OrderError,
)
from hookbus.testing import fingerprint
from hookbus.trainer.trainer import Trainer
from tests import toys


class AskingHook(Hook):
    schedules_validation = True


class NoisyData(TensorDataset):
    """Dataset that draws from every RNG for each sample."""

    def __getitem__(self, index: Any) -> Any:
        noise = torch.rand(1).item() + random.random() + numpy.random.random()
        inputs, target = super().__getitem__(index)
        return inputs + noise, target


def data(count: int = 8, features: int = 4) -> NoisyData:
    return NoisyData(torch.ones(count, features), torch.zeros(count).long())


def make_trainer(tmp_path: Path, **options: Any) -> Trainer:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    defaults: dict[str, Any] = {
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "loss_fn": functional.cross_entropy,
        "train_loader": DataLoader(data(), batch_size=4, shuffle=True),
        "epochs": 2,
        "metrics": ["accuracy"],
        "work_dir": tmp_path / "runs",
        "default_hooks": False,
    }
    return Trainer(options.pop("model", model), **{**defaults, **options})


class TestReport:
    def test_check_describes_the_training(self, tmp_path: Path) -> None:
        class Listens(Hook):
            def before_train(self) -> None: ...

        loader, hooks = DataLoader(data(6), batch_size=4), [Listens(name="one"), Listens(name="two")]
        trainer = make_trainer(tmp_path, hooks=hooks, val_loader=loader, test_loader=loader)
        assert trainer.check() == [
            "model: Sequential, 38 parameters to train on cpu",  # 4*4+4, 4+4, 4*2+2
            "train: 2 batches",
            "val: 2 batches",
            "test: 2 batches",
            "limit: 2 epochs",
            "hooks: one, two",
            f"work dir: {tmp_path / 'runs'}",
        ]

    def test_check_names_loaders_of_unknown_length(self, tmp_path: Path) -> None:
        class Stream:
            def __iter__(self) -> Iterator[Any]:
                yield torch.ones(4, 4), torch.zeros(4).long()

        trainer = make_trainer(
            tmp_path, train_loader=Stream(), val_loader={"a": Stream(), "b": Stream()}, work_dir=None
        )
        assert trainer.check()[1:] == [
            "train: unknown number of batches",
            "val a: unknown number of batches",
            "val b: unknown number of batches",
            "limit: 2 epochs",
            "hooks: none",
            "work dir: none, nothing is written",
        ]

    def test_check_reports_the_next_free_work_dir(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path)
        trainer.fit()
        assert make_trainer(tmp_path).check()[-1] == f"work dir: {tmp_path / 'runs-2'}"
        assert make_trainer(tmp_path, overwrite=True).check()[-1] == f"work dir: {tmp_path / 'runs'}"


class TestSideEffects:
    def test_check_restores_weights_buffers_modes_and_rngs(self, tmp_path: Path) -> None:
        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(data(), batch_size=4, shuffle=True, generator=generator)
        trainer = make_trainer(tmp_path, train_loader=loader, val_loader=loader)
        trainer.model[0].eval()  # type: ignore[index]
        modes = [module.training for module in trainer.model.modules()]
        before = self.state(trainer, generator)
        trainer.check()
        assert self.state(trainer, generator) == before
        assert [module.training for module in trainer.model.modules()] == modes
        assert all(parameter.grad is None for parameter in trainer.model.parameters())

    def test_check_restores_rngs_used_by_the_loader(self, tmp_path: Path) -> None:
        class Stream:
            def __iter__(self) -> Iterator[Any]:
                yield torch.rand(4, 4), torch.zeros(4).long()

        trainer = make_trainer(tmp_path, train_loader=Stream(), model=nn.Linear(4, 2))
        before = torch.get_rng_state()
        trainer.check()
        assert torch.equal(torch.get_rng_state(), before)

    @staticmethod
    def state(trainer: Trainer, generator: torch.Generator) -> str:
        generator_name, keys, *rest = numpy.random.get_state()
        states = [
            torch.get_rng_state(),
            random.getstate(),
            str(generator_name),
            keys.tolist(),
            rest,
            generator.get_state(),
        ]  # type: ignore[union-attr]
        assert trainer.optimizer is not None
        return fingerprint([trainer.model.state_dict(), trainer.optimizer.state_dict(), states])

    def test_check_writes_no_file(self, tmp_path: Path) -> None:
        make_trainer(tmp_path, val_loader=DataLoader(data(), batch_size=4)).check()
        assert list(tmp_path.iterdir()) == []

    def test_check_resets_the_metrics(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path, val_loader=DataLoader(data(), batch_size=4))
        trainer.check()
        assert torch.isnan(trainer.eval_metrics["accuracy"].compute())

    def test_check_does_not_change_the_training(self, tmp_path: Path) -> None:
        ends = []
        for checks in (False, True):
            torch.manual_seed(0)
            trainer = make_trainer(tmp_path, work_dir=None, seed=1)
            if checks:
                trainer.check()
            trainer.fit()
            ends.append(fingerprint(trainer.model.state_dict()))
        assert ends[0] == ends[1]


class Losing(nn.Module):
    """Model that returns its loss in training mode only, as detection models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        output = self.layer(inputs)
        return {"loss": functional.cross_entropy(output, targets)} if self.training else {"output": output}


def test_loss_is_not_required_in_eval_mode(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Losing(), loss_fn=None, val_loader=DataLoader(data(), batch_size=4))
    assert trainer.check()[1:3] == ["train: 2 batches", "val: 2 batches"]


class TestErrors:
    def test_batch_of_the_wrong_shape_is_an_error(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path, train_loader=DataLoader(data(features=5), batch_size=4))
        with pytest.raises(
            LoopError, match="^A batch of the train_loader cannot be processed by the model: RuntimeError: .*mat1"
        ):
            trainer.check()

    def test_failing_dataset_is_an_error(self, tmp_path: Path) -> None:
        class Broken(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                raise KeyError("image 3")

        loader = DataLoader(Broken(torch.ones(4, 4)), batch_size=4)
        with pytest.raises(
            LoopError, match=r"^The val_loader 'b' cannot be read: KeyError: 'image 3' \(.*\.py, line \d+\)"
        ):
            make_trainer(tmp_path, val_loader={"a": DataLoader(data(), batch_size=4), "b": loader}).check()

    def test_empty_loader_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(
            LoopError, match="^The train_loader yields no batch. Pass a loader with at least one batch.$"
        ):
            make_trainer(tmp_path, train_loader=[]).check()

    def test_missing_loss_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match="loss: missing from the outputs of the model"):
            make_trainer(tmp_path, loss_fn=None, model=nn.Linear(4, 2), train_loader=[torch.ones(4, 4)]).check()

    def test_loss_that_is_not_a_scalar_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match=r"loss: expected a single number, got shape \(4, 2\)"):
            make_trainer(tmp_path, loss_fn=lambda output, target: output).check()

    def test_metric_without_inputs_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match="metrics accuracy: the targets are missing"):
            make_trainer(
                tmp_path, model=Losing(), loss_fn=None, val_loader=[{"inputs": torch.ones(4, 4), "targets": None}]
            ).check()

    def test_validation_request_requires_a_loader(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="hook 'asking' .*val"):
            make_trainer(tmp_path, hooks=[AskingHook()]).check()

    def test_cyclic_ordering_constraints_are_an_error(self, tmp_path: Path) -> None:
        class FirstHook(Hook):
            @hookimpl(before="second", after="second")
            def before_train(self) -> None: ...

        class SecondHook(Hook):
            def before_train(self) -> None: ...

        with pytest.raises(OrderError):
            make_trainer(tmp_path, hooks=[FirstHook(), SecondHook()]).check()

    def test_unwritable_work_dir_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(HookbusError, match="The work directory .*file/runs cannot be written"):
            make_trainer(tmp_path, work_dir=tmp_path / "file" / "runs").check()

    def test_all_errors_are_listed(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        trainer = make_trainer(
            tmp_path,
            train_loader=[],
            val_loader=[],
            load_from="nowhere.pth",
            work_dir=tmp_path / "file" / "runs",
        )
        with pytest.raises(HookbusError) as caught:
            trainer.check()
        lines = str(caught.value).splitlines()
        assert [line.split()[1] for line in lines] == ["train_loader", "val_loader", "nowhere.pth:", "work"]


class TestFiles:
    """Files that a run starts from."""

    def checkpoint(self, tmp_path: Path) -> Path:
        """Return the path of a checkpoint of an earlier training."""
        toys.trainer(hook := toys.Saver("after_train"), epochs=1, work_dir=tmp_path / "earlier").fit()
        return hook.files[0]

    @staticmethod
    def get_error(trainer: Trainer) -> str:
        """Return the error of a check and a training, which must be identical and leave no work directory."""
        messages = []
        for begin in (trainer.check, trainer.fit):
            with pytest.raises(CheckpointError) as caught:
                begin()
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert trainer.work_dir is not None
        assert not Path(trainer.work_dir).exists()
        return messages[0]

    def trainer(self, tmp_path: Path, **options: Any) -> Trainer:
        return toys.trainer(**{"epochs": 2, "work_dir": tmp_path / "x", **options})

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_checkpoint_is_reported(self, tmp_path: Path, key: str) -> None:
        path = self.checkpoint(tmp_path)
        trainer = self.trainer(tmp_path, **{key: path})
        assert f"{key}: {path}" in trainer.check()
        trainer.fit()

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_missing_checkpoint_is_an_error(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "start.pth"
        assert self.get_error(self.trainer(tmp_path, **{key: path})) == f"{key}: {path}: file does not exist."

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_other_file_is_an_error(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a checkpoint")
        assert self.get_error(self.trainer(tmp_path, **{key: str(path)})).startswith(
            f"{key}: {path}: file cannot be loaded as data: "
        )

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_checkpoint_of_another_model_is_an_error(self, tmp_path: Path, key: str) -> None:
        path = self.checkpoint(tmp_path)
        trainer = self.trainer(tmp_path, model=toys.net(width=9), **{key: path})
        assert self.get_error(trainer).startswith(f"{key}: {path}: The weights do not match the model: ")

    def test_hook_may_convert_a_checkpoint(self, tmp_path: Path) -> None:
        class Renaming(Hook):
            def after_load_checkpoint(self, checkpoint: Any) -> None:
                checkpoint["state_dict"] = toys.net(width=9).state_dict()

        trainer = toys.trainer(
            Renaming(), model=toys.net(width=9), epochs=1, load_from=self.checkpoint(tmp_path), work_dir=None
        )
        trainer.check()
        trainer.fit()

    def test_non_strict_loading_skips_mismatches(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"epochs": 1, "load_from": self.checkpoint(tmp_path), "load_strict": False}
        model = nn.Sequential(*toys.net()[:3], nn.Linear(8, 3))
        trainer = toys.trainer(model=model, **options)
        kept = model[3].weight.clone()
        trainer.check()
        trainer.epochs = 0
        trainer.fit()

        saved = read_checkpoint(options["load_from"])["state_dict"]
        assert torch.equal(model[0].weight, saved["0.weight"])
        assert torch.equal(model[3].weight, kept)
        assert "No weight matches the model" in self.get_error(self.trainer(tmp_path, model=nn.Linear(4, 2), **options))

    def test_bare_state_dict_cannot_be_resumed(self, tmp_path: Path) -> None:
        path = tmp_path / "weights.pth"
        torch.save(toys.net().state_dict(), path)
        message = self.get_error(self.trainer(tmp_path, resume=path))
        assert message.startswith(f"resume: {path}: Not a checkpoint to resume from: it has no meta, ")
        assert message.endswith("Set `load_from` instead of `resume` to start from its weights alone.")
        self.trainer(tmp_path, load_from=path).fit()  # without a warning

    def test_missing_averaged_weights_are_an_error(self, tmp_path: Path) -> None:
        trainer = self.trainer(tmp_path, load_from=self.checkpoint(tmp_path), load_weights="averaged")
        assert self.get_error(trainer).endswith(
            "weights: averaged is set, but the checkpoint contains no averaged weights. Set weights: raw."
        )

    def test_corrupted_checkpoint_is_an_error(self, tmp_path: Path) -> None:
        path = self.checkpoint(tmp_path)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="corrupted"):
            self.trainer(tmp_path, load_from=path).check()

    def test_resumed_run_does_not_require_initial_weights(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"work_dir": tmp_path / "earlier", "epochs": 2, "load_from": tmp_path / "gone.pth"}
        with pytest.raises(CheckpointError, match="gone.pth: file does not exist"):
            toys.trainer(resume="auto", **options).check()
        path = self.checkpoint(tmp_path)
        trainer = toys.trainer(resume="auto", **options)
        assert f"resume: {path}" in trainer.check()
        assert trainer.fit().iters_done == 6

    def test_resume_without_a_valid_checkpoint_is_an_error(self, tmp_path: Path) -> None:
        path = self.checkpoint(tmp_path)
        path.write_bytes(b"short")
        with pytest.raises(ConfigError, match=rf"no checkpoint in .* can be used.*\n  {path}: corrupted: expected"):
            toys.trainer(resume="auto", work_dir=tmp_path / "earlier", epochs=2).check()


class Elsewhere(toys.Saver):
    """Saver with a separate directory."""

    def __init__(self, path: Path) -> None:
        super().__init__("after_train")
        self.path = path

    def directory(self, run: Any) -> Path:
        return self.path


class TestCheckpointDirectory:
    def test_checkpoint_directory_outside_the_work_dir_is_reported(self, tmp_path: Path) -> None:
        path = tmp_path / "elsewhere"
        assert f"checkpoints: {path}" in toys.trainer(Elsewhere(path), epochs=1, work_dir=tmp_path / "x").check()
        inside = tmp_path / "x" / "checkpoints"
        assert "checkpoints" not in str(toys.trainer(Elsewhere(inside), epochs=1, work_dir=tmp_path / "x").check())
        assert list(tmp_path.iterdir()) == []

    def test_file_in_the_place_of_the_directory_in_the_work_dir_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").write_text("mine")
        with pytest.raises(CheckpointError, match=r"checkpoints cannot be written: .*checkpoints is not a directory"):
            toys.trainer(Elsewhere(tmp_path / "checkpoints"), epochs=1, work_dir=tmp_path).check()
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]

    @pytest.mark.parametrize(
        ("name", "reason"), [("x" * 300, "File name too long"), ("file/x", ".*file is not a directory")]
    )
    def test_unwritable_checkpoint_directory_is_an_error(self, tmp_path: Path, name: str, reason: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=f"^The checkpoint directory .* cannot be written: {reason}"):
            toys.trainer(Elsewhere(tmp_path / name), epochs=1).check()


class TestOptimizers:
    def make_trainer(self, *hooks: object) -> Trainer:
        model = toys.net()
        return toys.trainer(*hooks, model=model, optimizer=torch.optim.LBFGS(model.parameters()), epochs=1)

    def test_optimizer_with_a_closure_is_an_error(self) -> None:
        for begin in (self.make_trainer().check, self.make_trainer().fit):
            with pytest.raises(ConfigError, match="^optimizer: LBFGS requires a closure"):
                begin()

    def test_hook_may_step_an_optimizer_with_a_closure(self) -> None:
        class Stepping(Hook):
            @hookimpl
            def train_step(self, run: Any, batch: Any) -> Any:
                return {"loss": run.optimizer.step(lambda: run.model(batch[0]).sum())}

        self.make_trainer(Stepping()).check()


class TestSchedules:
    class Ending(Hook):
        @hookimpl(when=last)
        def after_epoch(self) -> None: ...

    def test_schedule_with_an_unknown_limit_is_an_error(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path, hooks=[self.Ending()], epochs=None, iterations=3)
        for begin in (trainer.check, trainer.fit):
            with pytest.raises(ConfigError) as caught:
                begin()
            assert str(caught.value) == (
                "hook 'ending' at after_epoch: when=last: the run has no known limit in this unit, only in "
                "iterations. Use last(unit='iter')."
            )
        assert list(tmp_path.iterdir()) == []

    def test_schedule_with_a_known_limit_is_valid(self, tmp_path: Path) -> None:
        make_trainer(tmp_path, hooks=[self.Ending()]).check()


def test_hook_with_a_validation_requires_no_loader(tmp_path: Path) -> None:
    class BringingHook(AskingHook):
        @property
        def validation_fn(self) -> Any:
            return lambda run: {"loss": 1.0}

    assert "hooks: bringing" in make_trainer(tmp_path, hooks=[BringingHook()]).check()


class TestRestoredScheduler:
    """A run of 2 epochs with 3 batches is resumed with more epochs."""

    def trainer(self, tmp_path: Path, epochs: int, total: int, **options: Any) -> Trainer:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=total)
        options = {"scheduler_interval": "step", "work_dir": tmp_path / "run", **options}
        return toys.trainer(model=model, optimizer=optimizer, scheduler=scheduler, epochs=epochs, **options)

    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        trainer = self.trainer(tmp_path, 2, 6)
        trainer.fit()
        path = tmp_path / "two.pth"
        write_checkpoint(path, build_checkpoint(trainer.bus.current), 1)
        return path

    def test_scheduler_that_ends_early_is_refused_before_training(self, tmp_path: Path, checkpoint: Path) -> None:
        message = (
            "scheduler: step 7 of the scheduler raised ValueError: Tried to step 7 times: it was built for 6 steps"
        )
        with pytest.raises(ConfigError, match=message):
            self.trainer(tmp_path, 4, 6, resume=checkpoint).check()
        trainer = self.trainer(tmp_path, 4, 6, resume=checkpoint)
        with pytest.raises(ConfigError, match=f"{message}, and the run needs 12. Build it for 12 steps."):
            trainer.fit()
        assert trainer.bus.current.iters_done == 0, "no state is restored"

    def test_scheduler_that_was_built_for_the_new_length_is_used(self, tmp_path: Path, checkpoint: Path) -> None:
        trainer = self.trainer(tmp_path, 4, 12, resume=checkpoint)
        trainer.check()
        assert trainer.fit().iters_done == 12
        assert trainer.scheduler.scheduler.last_epoch == 12

    def test_second_training_is_checked(self, tmp_path: Path) -> None:
        trainer = self.trainer(tmp_path, 2, 6)
        trainer.fit()
        with pytest.raises(ConfigError, match="built for 6 steps, and the run needs 9"):
            trainer.fit(epochs=3)


class Reader(Hook):
    """Hook that requires metrics of validations."""

    def __init__(self, *needs: str) -> None:
        super().__init__()
        self._needs = needs

    @property
    def required_metrics(self) -> Collection[str]:
        return self._needs


class Giver(Hook):
    """Hook that adds results to a validation."""

    def __init__(self, *gives: str, anything: bool = False) -> None:
        super().__init__()
        self._gives = None if anything else gives

    @property
    def provided_metrics(self) -> Collection[str] | None:
        return self._gives

    def after_val_iter(self, run: Any) -> None:
        run.log(dice=0.5)


class Keeper(Hook):
    @property
    def best_metrics(self) -> Mapping[str, Any]:
        return {"f1": "greater"}


class Own(Hook):
    schedules_validation = True

    @property
    def validation_fn(self) -> Any:
        return lambda run: {"anything": 1.0}


def trainer(*hooks: object, **options: Any) -> Trainer:
    return toys.trainer(*hooks, **{"val_loader": toys.pairs(1), "metrics": ["accuracy"], "epochs": 1, **options})


def get_error(trainer: Trainer) -> str:
    with pytest.raises(HookbusError) as caught:
        trainer.check()
    return str(caught.value)


class TestAvailableMetrics:
    @pytest.mark.parametrize("name", ["accuracy", "val_accuracy", "val/accuracy", "loss", "val_loss"])
    def test_metric_name_is_accepted_in_every_form(self, name: str) -> None:
        trainer(Reader(name)).check()

    def test_additional_model_outputs_are_metrics(self) -> None:
        class WithNorm(nn.Linear):
            def forward(self, x: Any, y: Any = None) -> Any:
                output = super().forward(x)
                return {"output": output, "loss": nn.functional.cross_entropy(output, y), "norm": x.norm()}

        trainer(Reader("val/norm"), model=WithNorm(4, 2), loss_fn=None).check()

    def test_metric_with_several_results_provides_all_of_them(self) -> None:
        class Pair:
            def update(self, outputs: Any, targets: Any) -> None: ...
            def reset(self) -> None: ...
            def compute(self) -> Any:
                return {"precision": 1.0, "recall": 0.5}

        trainer(Reader("precision", "val/recall"), metrics={"pair": Pair()}).check()

    def test_metric_that_fails_on_one_batch_is_expected(self) -> None:
        class Patient:
            def update(self, outputs: Any, targets: Any) -> None: ...
            def reset(self) -> None: ...
            def compute(self) -> Any:
                raise ValueError("needs two classes")

        trainer(Reader("auc"), metrics={"auc": Patient()}).check()

    def test_training_provides_the_expected_metrics(self) -> None:
        class Reading(Reader):
            def after_val(self, metrics: Any) -> None:
                self.read = [metrics[name] for name in self._needs]

        hook = Reading("val_loss", "accuracy", "dice")
        trained = trainer(hook, Giver("dice"))
        trained.check()
        trained.fit()
        assert len(hook.read) == 3


class TestMissingMetrics:
    def test_unknown_metric_lists_close_matches_and_all_names(self) -> None:
        assert get_error(trainer(Reader("acuracy"))) == (
            f"hook 'reader' (module {__name__}): Unknown metric 'acuracy'. "
            "Did you mean 'accuracy'? Available: val/accuracy, val/loss."
        )

    def test_unknown_metrics_of_all_hooks_are_listed(self) -> None:
        class Second(Reader):
            pass

        lines = get_error(trainer(Reader("bleu", "rouge"), Second("wer"))).splitlines()
        assert [line.partition("metric ")[2].partition(".")[0] for line in lines] == ["'bleu'", "'rouge'", "'wer'"]

    def test_ambiguous_metric_is_an_error(self) -> None:
        loaders = {"near": toys.pairs(1), "far": toys.pairs(1)}
        assert "Ambiguous metric 'accuracy': val/far/accuracy or val/near/accuracy. Use the full name" in get_error(
            trainer(Reader("accuracy"), val_loader=loaders)
        )
        trainer(Reader("val/far/accuracy", "near/loss"), val_loader=loaders).check()

    def test_training_metrics_are_not_validation_results(self) -> None:
        assert "Unknown metric 'train/loss'." in get_error(trainer(Reader("train/loss")))

    def test_metric_of_a_best_checkpoint_is_required(self) -> None:
        message = get_error(trainer(Keeper()))
        assert f"hook 'keeper' (module {__name__}): Unknown metric 'f1'." in message

    def test_required_metrics_require_a_validation(self) -> None:
        with pytest.raises(ConfigError, match="^hook 'reader' .* requires 'accuracy', 'loss' of a validation"):
            trainer(Reader("accuracy", "loss"), val_loader=None).check()
        trainer(Reader(), val_loader=None).check()

    def test_metric_of_a_scheduler_is_required(self) -> None:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plateau = ReduceLROnPlateau(optimizer)
        stepped = {"model": model, "optimizer": optimizer, "scheduler": plateau}
        trainer(**stepped).check()
        assert get_error(trainer(**stepped, scheduler_monitor="acuracy")).startswith(
            "scheduler: Unknown metric 'acuracy'. Did you mean 'accuracy'?"
        )


class TestUndeclaredMetrics:
    """Unknown metrics are not an error if undeclared results are possible."""

    def test_declared_metrics_are_expected(self) -> None:
        assert "Unknown metric 'dice'." in get_error(trainer(Reader("dice"), Giver()))
        trainer(Reader("dice", "val/dice"), Giver("dice")).check()
        assert "Did you mean 'dice'? Available: val/accuracy, val/dice, val/loss." in get_error(
            trainer(Reader("dise"), Giver("dice"))
        )

    def test_hook_may_add_undeclared_metrics(self) -> None:
        trainer(Reader("whatever"), Giver(anything=True)).check()

    def test_hook_with_a_validation_may_return_any_metric(self) -> None:
        trainer(Reader("anything"), Own()).check()
        trainer(Reader("anything"), Own(), val_loader=None).check()

    def test_hook_with_a_val_step_may_return_any_metric(self) -> None:
        class Stepping(Hook):
            @hookimpl
            def val_step(self, run: Any, batch: Any) -> Any:
                return {"bleu": torch.tensor(0.5)}

        trainer(Reader("bleu"), Stepping()).check()

    @pytest.mark.parametrize(("point", "known"), [("after_val_iter", False), ("before_train", True)])
    def test_plain_listener_may_add_metrics_at_its_point(self, point: str, known: bool) -> None:
        made = trainer(Reader("bleu"))
        made.bus.on(point)(lambda run: None)
        if known:
            assert "Unknown metric 'bleu'." in get_error(made)
        else:
            made.check()

    def test_failing_loader_is_the_only_error(self) -> None:
        assert (
            get_error(trainer(Reader("acuracy"), val_loader=[]))
            == "The val_loader yields no batch. Pass a loader with at least one batch."
        )


class TestSchedulers:
    def made(self, total: int, **options: Any) -> Trainer:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=total)
        return trainer(model=model, optimizer=optimizer, scheduler=scheduler, **options)

    @pytest.mark.parametrize(
        ("total", "options"),
        [
            (4, {"epochs": 4}),
            (6, {"epochs": 2, "scheduler_interval": "step"}),  # 3 batches
            (3, {"epochs": 2, "scheduler_interval": "step", "accumulate": 2}),
            (7, {"epochs": None, "iterations": 7, "scheduler_interval": "step"}),
            (2, {"epochs": None, "iterations": 8}),
        ],
    )
    def test_scheduler_with_too_few_steps_is_an_error(self, total: int, options: dict[str, Any]) -> None:
        self.made(total, **options).check()
        with pytest.raises(ConfigError, match=f"^scheduler: step {total} of the scheduler raised ValueError: Tried"):
            self.made(total - 1, **options).check()

    def test_check_does_not_change_the_scheduler(self) -> None:
        made = self.made(4, epochs=4)
        before = made.scheduler.scheduler.state_dict().copy(), made.optimizer.param_groups[0]["lr"]  # type: ignore[union-attr]
        made.check()
        assert (made.scheduler.scheduler.state_dict(), made.optimizer.param_groups[0]["lr"]) == before  # type: ignore[union-attr]

    def test_custom_scheduler_is_stepped(self) -> None:
        class Mine:
            def step(self) -> None:
                raise RuntimeError("never")

        with pytest.raises(ConfigError, match="step 1 of the scheduler raised RuntimeError: never"):
            trainer(scheduler=Mine()).check()


def test_check_does_not_change_the_learning_rate() -> None:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = trainer(model=model, optimizer=optimizer, scheduler=StepLR(optimizer, 1, 0.5), epochs=3)
    made.check()
    made.fit()
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
