"""What would go wrong, without training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook
from hookbus.errors import (
    CheckpointError,
    ConfigError,
    HookbusError,
    HookWarning,
    LoopError,
    OrderError,
    RequestError,
)
from hookbus.loop import Trainer
from hookbus.markers import hookimpl
from hookbus.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus.when import last
from tests import toys


class AskingHook(Hook):
    schedules_validation = True


class NoisyData(TensorDataset):
    """Draws from every random stream for each sample."""

    def __getitem__(self, index: Any) -> Any:
        noise = torch.rand(1).item() + random.random() + numpy.random.random()
        inputs, target = super().__getitem__(index)
        return inputs + noise, target


def data(count: int = 8, features: int = 4) -> NoisyData:
    return NoisyData(torch.ones(count, features), torch.zeros(count).long())


def made(tmp_path: Path, **options: Any) -> Trainer:
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


class TestWhatItSays:
    def test_it_says_what_a_training_would_do(self, tmp_path: Path) -> None:
        loader = DataLoader(data(6), batch_size=4)
        trainer = made(tmp_path, hooks=[Hook(name="one"), Hook(name="two")], val_loader=loader, test_loader=loader)
        assert trainer.check() == [
            "model: Sequential, 38 parameters to train on cpu",  # 4*4+4, 4+4, 4*2+2
            "train: 2 batches",
            "val: 2 batches",
            "test: 2 batches",
            "limit: 2 epochs",
            "hooks: one, two",
            f"work dir: {tmp_path / 'runs'}",
        ]

    def test_it_names_several_loaders_and_says_where_a_length_is_not_known(self, tmp_path: Path) -> None:
        class Stream:
            def __iter__(self) -> Iterator[Any]:
                yield torch.ones(4, 4), torch.zeros(4).long()

        trainer = made(tmp_path, train_loader=Stream(), val_loader={"a": Stream(), "b": Stream()}, work_dir=None)
        assert trainer.check()[1:] == [
            "train: unknown number of batches",
            "val a: unknown number of batches",
            "val b: unknown number of batches",
            "limit: 2 epochs",
            "hooks: none",
            "work dir: none, nothing is written",
        ]

    def test_a_work_dir_that_holds_a_run_is_not_the_one_it_would_take(self, tmp_path: Path) -> None:
        trainer = made(tmp_path)
        trainer.fit()
        assert made(tmp_path).check()[-1] == f"work dir: {tmp_path / 'runs-2'}"
        assert made(tmp_path, overwrite=True).check()[-1] == f"work dir: {tmp_path / 'runs'}"


class TestWhatItLeaves:
    def test_weights_buffers_modes_and_random_streams_are_as_before(self, tmp_path: Path) -> None:
        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(data(), batch_size=4, shuffle=True, generator=generator)
        trainer = made(tmp_path, train_loader=loader, val_loader=loader)
        trainer.model[0].eval()  # type: ignore[index]
        modes = [module.training for module in trainer.model.modules()]
        before = self.state(trainer, generator)
        trainer.check()
        assert self.state(trainer, generator) == before
        assert [module.training for module in trainer.model.modules()] == modes
        assert all(parameter.grad is None for parameter in trainer.model.parameters())

    def test_a_loader_that_draws_numbers_itself_leaves_the_random_streams_alone(self, tmp_path: Path) -> None:
        class Stream:
            def __iter__(self) -> Iterator[Any]:
                yield torch.rand(4, 4), torch.zeros(4).long()

        trainer = made(tmp_path, train_loader=Stream(), model=nn.Linear(4, 2))
        before = torch.get_rng_state()
        trainer.check()
        assert torch.equal(torch.get_rng_state(), before)

    @staticmethod
    def state(trainer: Trainer, generator: torch.Generator) -> str:
        kind, keys, *rest = numpy.random.get_state()
        streams = [torch.get_rng_state(), random.getstate(), str(kind), keys.tolist(), rest, generator.get_state()]  # type: ignore[union-attr]
        assert trainer.optimizer is not None
        return fingerprint([trainer.model.state_dict(), trainer.optimizer.state_dict(), streams])

    def test_no_file_is_written(self, tmp_path: Path) -> None:
        made(tmp_path, val_loader=DataLoader(data(), batch_size=4)).check()
        assert list(tmp_path.iterdir()) == []

    def test_no_score_is_kept(self, tmp_path: Path) -> None:
        trainer = made(tmp_path, val_loader=DataLoader(data(), batch_size=4))
        trainer.check()
        assert torch.isnan(trainer.scores["accuracy"].compute())

    def test_a_training_goes_as_it_would_have_gone(self, tmp_path: Path) -> None:
        ends = []
        for checks in (False, True):
            torch.manual_seed(0)
            trainer = made(tmp_path, work_dir=None, seed=1)
            if checks:
                trainer.check()
            trainer.fit()
            ends.append(fingerprint(trainer.model.state_dict()))
        assert ends[0] == ends[1]


class Losing(nn.Module):
    """Returns its loss in training mode only, as detection models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        output = self.layer(inputs)
        return {"loss": functional.cross_entropy(output, targets)} if self.training else {"output": output}


def test_a_model_that_has_a_loss_in_training_only_is_fine(tmp_path: Path) -> None:
    trainer = made(tmp_path, model=Losing(), loss_fn=None, val_loader=DataLoader(data(), batch_size=4))
    assert trainer.check()[1:3] == ["train: 2 batches", "val: 2 batches"]


class TestWhatItFinds:
    def test_a_batch_that_does_not_fit_the_model(self, tmp_path: Path) -> None:
        trainer = made(tmp_path, train_loader=DataLoader(data(features=5), batch_size=4))
        with pytest.raises(
            LoopError, match="^A batch of the train_loader cannot go through the model: RuntimeError: mat1"
        ):
            trainer.check()

    def test_a_data_set_that_cannot_be_read(self, tmp_path: Path) -> None:
        class Broken(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                raise KeyError("picture 3")

        loader = DataLoader(Broken(torch.ones(4, 4)), batch_size=4)
        with pytest.raises(
            LoopError, match=r"^The val_loader 'b' cannot be read: KeyError: 'picture 3' \(.*\.py, line \d+\)"
        ):
            made(tmp_path, val_loader={"a": DataLoader(data(), batch_size=4), "b": loader}).check()

    def test_a_loader_without_a_batch(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match="^The train_loader gives no batch.$"):
            made(tmp_path, train_loader=[]).check()

    def test_a_model_without_a_loss(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match="There is no loss to train on"):
            made(tmp_path, loss_fn=None, model=nn.Linear(4, 2), train_loader=[torch.ones(4, 4)]).check()

    def test_a_loss_that_is_not_one_number(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match=r"The loss has shape \(4, 2\)"):
            made(tmp_path, loss_fn=lambda output, target: output).check()

    def test_scores_that_cannot_be_measured(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match="The metrics accuracy need"):
            made(
                tmp_path, model=Losing(), loss_fn=None, val_loader=[{"inputs": torch.ones(4, 4), "targets": None}]
            ).check()

    def test_a_hook_that_will_ask_for_validations_where_there_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match="hook 'asking' .*val"):
            made(tmp_path, hooks=[AskingHook()]).check()

    def test_wishes_about_the_order_that_contradict_each_other(self, tmp_path: Path) -> None:
        class FirstHook(Hook):
            @hookimpl(before="second", after="second")
            def before_train(self) -> None: ...

        class SecondHook(Hook):
            def before_train(self) -> None: ...

        with pytest.raises(OrderError):
            made(tmp_path, hooks=[FirstHook(), SecondHook()]).check()

    def test_a_work_dir_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(HookbusError, match="The work directory .*file/runs cannot be written"):
            made(tmp_path, work_dir=tmp_path / "file" / "runs").check()

    def test_everything_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        trainer = made(
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
    """What a run would begin from."""

    def checkpoint(self, tmp_path: Path) -> Path:
        """One that a training has left."""
        toys.trainer(hook := toys.Saver("after_train"), epochs=1, work_dir=tmp_path / "earlier").fit()
        return hook.files[0]

    @staticmethod
    def refused(trainer: Trainer) -> str:
        """What a check and a training say, which is the same; the training takes no work directory."""
        told = []
        for begin in (trainer.check, trainer.fit):
            with pytest.raises(CheckpointError) as caught:
                begin()
            told.append(str(caught.value))
        assert told[0] == told[1]
        assert trainer.work_dir is not None
        assert not Path(trainer.work_dir).exists()
        return told[0]

    def trainer(self, tmp_path: Path, **options: Any) -> Trainer:
        return toys.trainer(**{"epochs": 2, "work_dir": tmp_path / "x", **options})

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_one_that_is_there_is_named(self, tmp_path: Path, key: str) -> None:
        path = self.checkpoint(tmp_path)
        trainer = self.trainer(tmp_path, **{key: path})
        assert f"{key}: {path}" in trainer.check()
        trainer.fit()

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_one_that_is_not_there(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "start.pth"
        assert self.refused(self.trainer(tmp_path, **{key: path})) == f"{key}: {path}: there is no such file."

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_one_that_is_no_checkpoint(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a checkpoint")
        assert self.refused(self.trainer(tmp_path, **{key: str(path)})).startswith(
            f"{key}: {path}: it cannot be read as data: "
        )

    @pytest.mark.parametrize("key", ["resume", "load_from"])
    def test_one_of_another_model(self, tmp_path: Path, key: str) -> None:
        path = self.checkpoint(tmp_path)
        trainer = self.trainer(tmp_path, model=toys.net(width=9), **{key: path})
        assert self.refused(trainer).startswith(f"{key}: {path}: The weights do not fit the model: ")

    def test_one_of_another_model_that_a_hook_may_change_after_reading(self, tmp_path: Path) -> None:
        class Renaming(Hook):
            def after_load_checkpoint(self, checkpoint: Any) -> None:
                checkpoint["state_dict"] = toys.net(width=9).state_dict()

        trainer = toys.trainer(
            Renaming(), model=toys.net(width=9), epochs=1, load_from=self.checkpoint(tmp_path), work_dir=None
        )
        trainer.check()
        trainer.fit()

    def test_one_of_another_model_where_only_what_fits_is_wanted(self, tmp_path: Path) -> None:
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
        assert "None of the weights fits" in self.refused(self.trainer(tmp_path, model=nn.Linear(4, 2), **options))

    def test_weights_alone_cannot_be_resumed(self, tmp_path: Path) -> None:
        path = tmp_path / "weights.pth"
        torch.save(toys.net().state_dict(), path)
        message = self.refused(self.trainer(tmp_path, resume=path))
        assert message.startswith(f"resume: {path}: This is not a checkpoint to resume from: it has no meta, ")
        assert message.endswith("say load_from instead of resume.")
        with pytest.warns(HookWarning, match="no sidecar"):
            self.trainer(tmp_path, load_from=path).fit()

    def test_averaged_weights_that_are_not_there(self, tmp_path: Path) -> None:
        trainer = self.trainer(tmp_path, load_from=self.checkpoint(tmp_path), load_weights="averaged")
        assert self.refused(trainer).endswith("weights: averaged was asked for, but the file has no averaged weights.")

    def test_a_byte_that_has_changed_is_seen_by_a_check(self, tmp_path: Path) -> None:
        path = self.checkpoint(tmp_path)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            self.trainer(tmp_path, load_from=path).check()

    def test_a_run_that_goes_on_needs_no_weights_to_start_from(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"work_dir": tmp_path / "earlier", "epochs": 2, "load_from": tmp_path / "gone.pth"}
        with pytest.raises(CheckpointError, match="gone.pth: there is no such file"):
            toys.trainer(resume="auto", **options).check()
        path = self.checkpoint(tmp_path)
        trainer = toys.trainer(resume="auto", **options)
        assert f"resume: {path}" in trainer.check()
        assert trainer.fit().iters_done == 6

    def test_automatic_resume_that_finds_nothing_whole(self, tmp_path: Path) -> None:
        path = self.checkpoint(tmp_path)
        path.write_bytes(b"short")
        with pytest.raises(CheckpointError, match="^No checkpoint can be used:"):
            toys.trainer(resume="auto", work_dir=tmp_path / "earlier", epochs=2).check()


class Elsewhere(toys.Saver):
    """Writes its files into a directory of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__("after_train")
        self.path = path

    def directory(self, run: Any) -> Path:
        return self.path


class TestDirectoryOfCheckpoints:
    def test_it_is_told_where_it_is_not_in_the_work_dir(self, tmp_path: Path) -> None:
        path = tmp_path / "elsewhere"
        assert f"checkpoints: {path}" in toys.trainer(Elsewhere(path), epochs=1, work_dir=tmp_path / "x").check()
        inside = tmp_path / "x" / "checkpoints"
        assert "checkpoints" not in str(toys.trainer(Elsewhere(inside), epochs=1, work_dir=tmp_path / "x").check())
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("name", "reason"), [("x" * 300, "File name too long"), ("file/x", ".*file is no directory")]
    )
    def test_one_that_cannot_be_made_is_told(self, tmp_path: Path, name: str, reason: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=f"^The directory .* for checkpoints cannot be written: {reason}"):
            toys.trainer(Elsewhere(tmp_path / name), epochs=1).check()


class TestOptimizers:
    def made(self, *hooks: object) -> Trainer:
        model = toys.net()
        return toys.trainer(*hooks, model=model, optimizer=torch.optim.LBFGS(model.parameters()), epochs=1)

    def test_one_that_wants_the_loss_again_is_told(self) -> None:
        for begin in (self.made().check, self.made().fit):
            with pytest.raises(ConfigError, match="^optimizer: LBFGS wants a function that computes the loss again"):
                begin()

    def test_a_hook_may_step_it(self) -> None:
        class Stepping(Hook):
            @hookimpl
            def train_step(self, run: Any, batch: Any) -> Any:
                return {"loss": run.optimizer.step(lambda: run.model(batch[0]).sum())}

        self.made(Stepping()).check()


class TestSchedules:
    class Ending(Hook):
        @hookimpl(when=last)
        def after_epoch(self) -> None: ...

    def test_an_end_that_is_not_known_is_told_before_anything_is_trained(self, tmp_path: Path) -> None:
        trainer = made(tmp_path, hooks=[self.Ending()], epochs=None, iterations=3)
        for begin in (trainer.check, trainer.fit):
            with pytest.raises(ConfigError) as caught:
                begin()
            assert str(caught.value) == (
                "hook 'ending' at after_epoch: when=last needs a run whose end is known in what it counts, and the end "
                "of this one is known in iterations: write last(unit='iter')."
            )
        assert list(tmp_path.iterdir()) == []

    def test_one_that_is_known_is_fine(self, tmp_path: Path) -> None:
        made(tmp_path, hooks=[self.Ending()]).check()


def test_a_hook_that_brings_its_own_validation_needs_no_loader(tmp_path: Path) -> None:
    class BringingHook(AskingHook):
        @property
        def validates_with(self) -> Any:
            return lambda run: {"loss": 1.0}

    assert "hooks: bringing" in made(tmp_path, hooks=[BringingHook()]).check()
