"""Rows of docs/coming-from.md: what is built into Transformers, and the hooks and settings that replace it."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers import trainer as native_module

from hookbus import Hook, Run, Trainer
from hookbus.testing import HostTask
from hookbus_checkpoint import CheckpointHook, PreemptionHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_eval import EvalHook
from hookbus_finders import BatchSizeFinderHook
from hookbus_runtime import EmptyCacheHook, OutOfMemoryHook, memory
from hookbus_schedule import AccumulationHook, ParamSchedulerHook

from .migration import covers, get_logs, get_saved, get_weights, make_reference, train_native, train_reference
from .toys import StopTrainer, make_classifier, make_labeled_texts, make_model_trainer


class StopAt(Hook):
    """Request a stop after an epoch."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def after_epoch(self, run: Run) -> None:
        if run.epochs_done == self.epochs:
            run.request_stop("enough")


def read_saved(directory: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint of the Trainer."""
    from safetensors.torch import load_file

    return load_file(directory / f"host/checkpoint-{step}/model.safetensors")


def assert_equal(weights: Any, others: Any) -> None:
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@covers("`save_strategy`", "`checkpoint`")
def test_both_save_each_epoch(tmp_path: Path) -> None:
    train_native(tmp_path, save_strategy="epoch")
    train_reference(tmp_path, hooks=[CheckpointHook(best_metric="loss")])
    assert get_saved(tmp_path) == ["checkpoint-12", "checkpoint-6"]
    directory = tmp_path / "reference/checkpoints"
    for epoch in (1, 2):
        weights = torch.load(directory / f"epoch_{epoch}.pth", weights_only=True)["state_dict"]
        assert_equal(read_saved(tmp_path, 6 * epoch), weights)


@covers("`resume_from_checkpoint`", "`checkpoint`, with `resume: auto`")
def test_both_resume(tmp_path: Path) -> None:
    def make_hooks() -> list[Hook]:
        return [CheckpointHook(best_metric="loss")]

    whole = train_native(tmp_path / "whole")
    train_native(tmp_path, callbacks=[StopTrainer(6)])
    native = train_native(tmp_path, resume=True)
    train_reference(tmp_path, hooks=[*make_hooks(), StopAt(1)])
    run = train_reference(tmp_path, hooks=make_hooks(), resume="auto")
    assert native.state.global_step == run.steps_done == 12
    assert torch.equal(get_weights(native.model), get_weights(whole.model))
    assert torch.equal(get_weights(run.model), get_weights(whole.model))


@pytest.mark.filterwarnings("ignore:mtime may not be reliable")  # Transformers 4, of two saves within a second
@covers(
    "`save_total_limit` with `load_best_model_at_end`",
    "`checkpoint` with `max_keep_ckpts`, which does not count the best ones; `save_top_k` is their number",
)
def test_both_keep_the_best_and_the_newest(tmp_path: Path) -> None:
    # With the direction `max` the first of four epochs is the best.
    options: dict[str, Any] = {"metric_for_best_model": "loss", "greater_is_better": True}
    task = HostTask(epochs=4)
    train_native(tmp_path, task, load_best_model_at_end=True, save_total_limit=2, **options)
    assert get_saved(tmp_path) == ["checkpoint-24", "checkpoint-6"]
    hook = CheckpointHook(save_best={"loss": "greater"}, save_top_k=1, max_keep_ckpts=1, save_last=False)
    train_reference(tmp_path, HostTask(epochs=4), [hook])
    directory = tmp_path / "reference/checkpoints"
    assert sorted(path.name for path in directory.glob("*.pth")) == ["best_loss.pth", "epoch_4.pth"]
    for step, name in ((6, "best_loss"), (24, "epoch_4")):
        assert_equal(read_saved(tmp_path, step), torch.load(directory / f"{name}.pth", weights_only=True)["state_dict"])


@covers(
    "`EarlyStoppingCallback`", "`early_stopping`, with `cumulative_delta: false` for a threshold, which is `min_delta`"
)
@pytest.mark.parametrize(("mode", "steps"), [("max", 18), ("min", 30)])
def test_both_stop_early(mode: Any, steps: int, tmp_path: Path) -> None:
    # The loss of the validation decreases in each of five epochs, so that `max` stops after two without progress.
    options: dict[str, Any] = {"metric_for_best_model": "loss", "greater_is_better": mode == "max"}
    callbacks = [EarlyStoppingCallback(2)]
    native = train_native(tmp_path / "native", HostTask(epochs=5), callbacks, load_best_model_at_end=True, **options)
    hooks = [EarlyStoppingHook(monitor="loss", mode=mode, patience=2)]
    trainer = train_native(tmp_path / "hook", HostTask(epochs=5), hooks=hooks)
    assert native.state.global_step == trainer.state.global_step == steps
    assert get_logs(trainer, "eval_loss") == get_logs(native, "eval_loss")


def test_threshold_is_compared_with_each_gain(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metric_for_best_model": "loss", "greater_is_better": False}
    losses = [loss for _, loss in get_logs(train_native(tmp_path / "all", HostTask(epochs=5), **options), "eval_loss")]
    gains = [before - after for before, after in pairwise(losses)]
    # More than the last two gains, but less than both together: small gains do not add up to progress.
    threshold = 1.05 * max(gains[-2:])
    assert threshold < sum(gains[-2:])
    epoch = next(epoch for epoch in (3, 4, 5) if max(gains[epoch - 3 : epoch - 1]) <= threshold)
    callbacks = [EarlyStoppingCallback(2, threshold)]
    native = train_native(tmp_path / "native", HostTask(epochs=5), callbacks, load_best_model_at_end=True, **options)
    hooks = [EarlyStoppingHook(monitor="loss", mode="min", patience=2, min_delta=threshold, cumulative_delta=False)]
    trainer = train_native(tmp_path / "hook", HostTask(epochs=5), hooks=hooks)
    assert native.state.global_step == trainer.state.global_step == 6 * epoch


@covers("`eval_strategy`", "`eval`")
@pytest.mark.parametrize(
    ("options", "settings", "steps"),
    [
        ({"eval_strategy": "epoch"}, {"interval": 1}, [6, 12]),
        ({"eval_strategy": "steps", "eval_steps": 4}, {"interval": 4, "by_epoch": False}, [4, 8, 12]),
    ],
    ids=["epoch", "steps"],
)
def test_both_evaluate(options: dict[str, Any], settings: dict[str, Any], steps: list[int], tmp_path: Path) -> None:
    native = train_native(tmp_path / "native", save_strategy="no", **options)
    hooks = [EvalHook(**settings)]
    trainer = train_native(tmp_path / "hook", hooks=hooks, save_strategy="no", eval_strategy="no")
    assert get_logs(trainer, "eval_loss") == get_logs(native, "eval_loss")
    assert [step for step, _ in get_logs(native, "eval_loss")] == steps


@covers("`lr_scheduler_type`", "`param_scheduler`")
@pytest.mark.parametrize(
    ("kind", "scheduler"),
    [
        ("linear", {"type": "LinearLR", "start_factor": 1.0, "end_factor": 0.0, "total_iters": 12}),
        ("cosine", {"type": "CosineAnnealingLR", "T_max": 12}),
    ],
    ids=["linear", "cosine"],
)
def test_learning_rates_are_equal(kind: str, scheduler: dict[str, Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1}
    native = train_native(tmp_path / "native", lr_scheduler_type=kind, **options)
    hooks = [ParamSchedulerHook(schedulers=[scheduler], interval="step")]
    trainer = train_native(tmp_path / "hook", hooks=hooks, **options)
    rates = get_logs(native, "learning_rate")
    assert get_logs(trainer, "learning_rate") == [(step, pytest.approx(rate)) for step, rate in rates]
    assert [step for step, _ in rates] == [*range(1, 13)]


@covers("`torch_empty_cache_steps`", "`empty_cache`, with `after_iter: true`")
def test_both_release_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    is_new = hasattr(native_module, "clear_device_cache")  # since Transformers 5
    owner, name = (native_module, "clear_device_cache") if is_new else (torch.cuda, "empty_cache")
    monkeypatch.setattr(owner, name, lambda: calls.append("native"))
    monkeypatch.setattr(memory, "empty_cache", lambda: calls.append("hook"))
    hook = EmptyCacheHook(after_iter=True, before_epoch=False, after_epoch=False, frequency=4)
    train_native(tmp_path, hooks=[hook], torch_empty_cache_steps=4, eval_strategy="no")
    # Before the steps 1, 5 and 9, and after the steps 4, 8 and 12.
    assert calls == ["native", "hook"] * 3


class RaiseSignal(TrainerCallback):
    """Send SIGTERM to this process at the end of the fourth step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 4:
            os.kill(os.getpid(), signal.SIGTERM)


@covers("`JITCheckpointCallback`", "`preemption`")
def test_both_save_before_a_preemption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(TrainingArguments, "enable_jit_checkpoint"):
        pytest.skip("this version of Transformers has no JITCheckpointCallback")
    from transformers import trainer_jit_checkpoint

    class Immediate:
        """Timer that does not wait."""

        def __init__(self, interval: float, function: Any) -> None:
            self.start = function

    monkeypatch.setattr(trainer_jit_checkpoint.threading, "Timer", Immediate)
    options: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no"}
    native = train_native(tmp_path / "native", callbacks=[RaiseSignal()], enable_jit_checkpoint=True, **options)
    trainer = train_native(tmp_path / "hook", callbacks=[RaiseSignal()], hooks=[PreemptionHook()], **options)
    assert (native.state.global_step, get_saved(tmp_path / "native")) == (5, ["checkpoint-4"])
    assert (trainer.state.global_step, get_saved(tmp_path / "hook")) == (5, ["checkpoint-5"])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def refuse_batches(model: nn.Module, size: int) -> None:
    """Let a model run out of memory with batches that are larger than a size."""

    def check(module: nn.Module, args: Any, kwargs: Any) -> None:
        if len([*args, *kwargs.values()][0]) > size:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.register_forward_pre_hook(check, with_kwargs=True)


@covers(
    "`auto_find_batch_size`",
    "`batch_size_finder` with `apply: true`; or `out_of_memory` with `retry: true`, which splits the batch",
)
def test_both_train_with_batches_that_fit(tmp_path: Path) -> None:
    model = make_classifier()
    refuse_batches(model, 1)
    native = make_model_trainer(model, tmp_path, make_labeled_texts(8), auto_find_batch_size=True)
    native.train()
    assert native.state.global_step == 16  # two epochs of eight batches of one sample, instead of two

    hook = OutOfMemoryHook(retry=True)
    trainer = make_reference(tmp_path, HostTask(), [hook], val_loader=None)
    refuse_batches(trainer.model, 2)
    run = trainer.fit()
    assert (hook.parts, run.outcome, run.steps_done) == (2, "finished", 12)  # of two epochs of six batches

    finder = BatchSizeFinderHook(apply=True)
    classifier = make_classifier()
    refuse_batches(classifier, 1)
    trainer = Trainer(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=0.1),
        train_loader=DataLoader(make_labeled_texts(8), 2),  # type: ignore[arg-type]
        epochs=2,
        hooks=[finder],
        default_hooks=False,
        work_dir=None,
        device="cpu",
    )
    assert trainer.fit().steps_done == native.state.global_step


@covers("`max_grad_norm`", "`training.clip_grad_norm`")
def test_weights_with_clipping_are_equal(tmp_path: Path) -> None:
    native = train_native(tmp_path, max_grad_norm=0.1)
    run = train_reference(tmp_path, clip_grad_norm=0.1)
    assert torch.equal(get_weights(native.model), get_weights(run.model))
    assert not torch.equal(get_weights(native.model), get_weights(train_reference(tmp_path / "other").model))


@covers("`gradient_accumulation_steps`", "`training.accumulate`, `accumulation`")
def test_weights_with_accumulation_are_equal(tmp_path: Path) -> None:
    native = train_native(tmp_path, HostTask(accumulate=2))
    run = train_reference(tmp_path, accumulate=2)
    scheduled = train_reference(tmp_path / "hook", hooks=[AccumulationHook(schedule={1: 2})])
    assert native.state.global_step == run.steps_done == scheduled.steps_done == 6
    assert torch.equal(get_weights(native.model), get_weights(run.model))
    assert torch.equal(get_weights(native.model), get_weights(scheduled.model))


@covers("`load_best_model_at_end`", "`hookbus test --checkpoint` with the best checkpoint")
def test_best_weights_are_equal(tmp_path: Path) -> None:
    # With the direction `max` the first of two epochs is the best.
    options: dict[str, Any] = {"metric_for_best_model": "loss", "greater_is_better": True}
    native = train_native(tmp_path, load_best_model_at_end=True, **options)
    assert native.state.best_model_checkpoint == str(tmp_path / "host/checkpoint-6")
    train_reference(tmp_path, hooks=[CheckpointHook(best_metric="loss", rule="greater")])
    (best,) = (tmp_path / "reference/checkpoints").glob("best*.pth")
    trainer = make_reference(tmp_path / "test", HostTask(), test_loader=HostTask().val_loader(), load_from=best)
    results = trainer.test()
    assert torch.equal(get_weights(trainer.model), get_weights(native.model))
    assert results["test/loss"] == pytest.approx(native.evaluate()["eval_loss"])
