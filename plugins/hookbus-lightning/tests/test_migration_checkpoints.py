"""Rows of the migration page for checkpoints: the weights in them, and trainings that continue from them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment

from hookbus import HookBus
from hookbus.checkpoint import read_checkpoint
from hookbus_checkpoint import CheckpointHook, PreemptionHook
from hookbus_early_stopping import EarlyStoppingHook

from .migration import covers
from .toys import Mean, Validated, attach, make_loader

OURS: dict[str, Any] = {"checkpoints": "hookbus"}


def fit(bridge: Any, module: Any = None, **options: Any) -> Any:
    """Train a module with 2 batches per epoch, and return it."""
    torch.manual_seed(0)
    module = module or Validated()
    bridge.host.fit(module, make_loader(1.0, 3.0), make_loader(1.0), **options)
    return module


def fit_with_lightning(directory: Path, epochs: int, **options: Any) -> Any:
    saving = ModelCheckpoint(directory / "saved", "{epoch}", save_top_k=-1, save_last=True)
    bridge = attach(HookBus(), directory, max_epochs=epochs, enable_checkpointing=True, callbacks=[saving])
    return fit(bridge, **options)


def fit_with_hook(directory: Path, epochs: int, resume: str) -> Any:
    bus = HookBus([CheckpointHook(save_best=False)])
    return fit(
        attach(bus, directory, options={**OURS, "work_dir": directory / "run", "resume": resume}, max_epochs=epochs)
    )


@covers("`ModelCheckpoint`", "`checkpoint`")
@covers('`ckpt_path="last"`', "`checkpoint`, with `resume: auto`")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_checkpoints_of_epochs_have_the_same_weights_and_continue_to_the_same_result(tmp_path: Path) -> None:
    fit_with_lightning(tmp_path, 2)
    fit_with_hook(tmp_path, 2, "never")
    for epoch, weight in ((1, 1 - 0.1 * 4), (2, 1 - 0.2 * 4)):
        native = torch.load(tmp_path / f"saved/epoch={epoch - 1}.ckpt", weights_only=True)["state_dict"]["weight"]
        ours = read_checkpoint(tmp_path / f"run/checkpoints/epoch_{epoch}.pth")["state_dict"]["weight"]
        assert torch.equal(native, ours)
        assert ours.item() == pytest.approx(weight)
    resumed = fit_with_lightning(tmp_path, 3, ckpt_path="last"), fit_with_hook(tmp_path, 3, "auto")
    whole = fit_with_lightning(tmp_path / "whole", 3)
    assert [module.weight.item() for module in resumed] == 2 * [whole.weight.item()]


class Scored(Mean):
    """Module with the given loss of each step, and the given result of the validation of each epoch."""

    STEPS = (4.0, 2.0, 3.0, 1.0, 2.0, 4.0, 3.0, 3.0, 0.0, 0.0)  # the means of the epochs are 3, 2, 3, 3 and 0
    EPOCHS = (3.0, 1.0, 2.0, 4.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.compute_loss(batch)
        loss = loss - loss.detach() + self.STEPS[self.global_step]
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", torch.tensor(self.EPOCHS[self.current_epoch]))


@covers(
    "`save_top_k` of `ModelCheckpoint`",
    "`checkpoint` with `save_top_k`; `monitor` and `mode` are `save_best: {val_loss: less}`",
)
@covers(
    "`filename` of `ModelCheckpoint`",
    '`checkpoint` with `filename_tmpl: "{epoch}-{val_loss:.2f}"`, with completed epochs and without the names of the '
    "fields",
)
def test_checkpoints_of_the_best_two_validations_are_the_same(tmp_path: Path) -> None:
    name = "{epoch}-{val_loss:.2f}"
    saving = ModelCheckpoint(tmp_path / "saved", name, monitor="val_loss", save_top_k=2)
    fit(attach(HookBus(), tmp_path, max_epochs=4, enable_checkpointing=True, callbacks=[saving]), Scored())
    hook = CheckpointHook(
        interval=None, save_last=False, save_best={"val_loss": "less"}, save_top_k=2, filename_tmpl=name
    )
    fit(attach(HookBus([hook]), tmp_path, options={**OURS, "work_dir": tmp_path / "run"}, max_epochs=4), Scored())

    native = {path.name: path for path in (tmp_path / "saved").glob("*.ckpt")}
    ours = {path.name: path for path in (tmp_path / "run/checkpoints").glob("*.pth")}
    assert set(native) == {"epoch=1-val_loss=1.00.ckpt", "epoch=2-val_loss=2.00.ckpt"}
    assert set(ours) == {"best_val_loss.pth", "best_val_loss_2-1.00.pth", "best_val_loss_3-2.00.pth"}
    for name, same in (("epoch=1-val_loss=1.00.ckpt", "2-1.00"), ("epoch=2-val_loss=2.00.ckpt", "3-2.00")):
        weight = torch.load(native[name], weights_only=True)["state_dict"]["weight"]
        assert torch.equal(weight, read_checkpoint(ours[f"best_val_loss_{same}.pth"])["state_dict"]["weight"])


@covers("`save_on_train_epoch_end`", "`checkpoint` with `best_metric: train/loss`")
@covers("`check_on_train_epoch_end`", "`early_stopping` with `monitor: train/loss`")
def test_best_epoch_and_stop_depend_on_the_training_loss(tmp_path: Path) -> None:
    stopping = EarlyStopping("train_loss", patience=2, check_on_train_epoch_end=True)
    saving = ModelCheckpoint(tmp_path / "saved", monitor="train_loss", save_on_train_epoch_end=True)
    callbacks = [stopping, saving]
    native = attach(HookBus(), tmp_path, max_epochs=5, enable_checkpointing=True, callbacks=callbacks)
    fit(native, Scored())
    hooks = [
        EarlyStoppingHook(monitor="train/loss", patience=2, restore_best_weights=False),
        CheckpointHook(best_metric="train/loss"),
    ]
    ours = attach(HookBus(hooks), tmp_path, options={**OURS, "work_dir": tmp_path / "run"}, max_epochs=5)
    fit(ours, Scored())

    best = ours.run.best["train/loss"]
    assert native.host.current_epoch == ours.run.epochs_done == 4
    assert float(saving.best_model_score) == float(stopping.best_score) == best.value == 2
    weight = torch.load(saving.best_model_path, weights_only=True)["state_dict"]["weight"]
    assert torch.equal(weight, read_checkpoint(best.path)["state_dict"]["weight"])


@covers("`SLURMEnvironment`", "`preemption`, which stops the training instead of requeueing the job")
def test_signal_of_slurm_saves_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requeue = tmp_path / "bin/scontrol"  # what SLURM would do
    requeue.parent.mkdir()
    requeue.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/requeued\n')
    requeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{requeue.parent}{os.pathsep}{os.environ['PATH']}")
    variables = {"JOB_ID": "17", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "JOB_NAME": "training"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)

    def send(step: int) -> Any:
        return lambda trainer, *_: os.kill(os.getpid(), signal.SIGUSR1) if trainer.global_step == step else None

    # Lightning saves at once, the hook at the end of the iteration: the signal arrives after and in the third one.
    after, within = LambdaCallback(on_train_batch_end=send(3)), LambdaCallback(on_train_batch_start=send(2))
    environment = SLURMEnvironment(auto_requeue=True, requeue_signal=signal.SIGUSR1)
    native = attach(HookBus(), tmp_path, max_epochs=3, callbacks=[after], plugins=[environment])
    fit(native)
    (path,) = tmp_path.glob("hpc_ckpt*.ckpt")
    saved = torch.load(path, weights_only=True)
    assert saved["global_step"] == 3
    assert (tmp_path / "requeued").read_text().split() == ["requeue", "17"]

    for name in variables:
        monkeypatch.delenv(f"SLURM_{name}")
    bus = HookBus([PreemptionHook(), CheckpointHook(interval=None, save_best=False)])
    ours = attach(bus, tmp_path, options={**OURS, "work_dir": tmp_path / "run"}, max_epochs=3, callbacks=[within])
    fit(ours)
    checkpoint = read_checkpoint(tmp_path / "run/checkpoints/last.pth")
    assert torch.equal(checkpoint["state_dict"]["weight"], saved["state_dict"]["weight"])
    # The hook also ends the training, which continues in Lightning until SLURM ends the process.
    assert (native.host.global_step, ours.host.global_step) == (6, 3)
