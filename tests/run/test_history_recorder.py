"""The history of runs: Trainer and custom loops, validations within epochs, averages, resume, and several ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode

from hookbus import History, Hook, HookBus, Run
from hookbus_ema import EMAHook
from tests import toys

HISTORY = "history.jsonl"


class ValidateAt(Hook):
    """Request a validation after some iterations."""

    def __init__(self, *iterations: int) -> None:
        super().__init__()
        self.iterations = iterations

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done in self.iterations:
            run.request_validation()


def run_loop(bus: HookBus, *, batches: int = 3, points: bool = True, **options: Any) -> Run:
    """Train with the number of the iteration as the loss, and with accuracies 0.1, 0.2, ... in validations."""
    results = iter(range(1, 100))
    options = {"epochs": 2, "validate": lambda: {"accuracy": next(results) / 10}, **options}
    with bus.run(**options) as run:
        for _ in run.epochs():
            if points:
                bus.emit("before_train_epoch")
            for i, batch in run.batches(range(batches)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                time.sleep(0.001)  # rows have milliseconds, and this loop has no work
                loss = torch.tensor(float(run.iters_done + 1))
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
            if points:
                bus.emit("after_train_epoch")
    return run


def drop_times(rows: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def read(directory: Path) -> list[dict[str, Any]]:
    return History.read(directory).rows


@pytest.mark.parametrize("points", [True, False])
def test_custom_loop_without_hooks_has_a_row_per_epoch(points: bool) -> None:
    run = run_loop(HookBus(), points=points)
    assert drop_times(run.history) == [
        {"kind": "epoch", "epoch": 1, "iteration": 3, "step": 3, "train/loss": 2.0},
        {"kind": "epoch", "epoch": 2, "iteration": 6, "step": 6, "train/loss": 5.0},
    ]
    assert 0 < run.history["seconds"][0] <= run.history["seconds"][1]


def test_run_of_bus_open_has_a_history_and_a_file(tmp_path: Path) -> None:
    bus = HookBus([])
    run = bus.open(epochs=1, work_dir=tmp_path / "x")
    bus.emit("before_train_epoch")
    bus.emit("after_train_iter", outputs={"loss": 4.0})
    bus.emit("after_train_epoch")
    run.close()
    assert read(tmp_path / "x") == run.history.rows
    assert run.history["train/loss"] == [4.0]


def test_validation_at_the_end_of_an_epoch_belongs_to_its_row(tmp_path: Path) -> None:
    run = run_loop(HookBus([ValidateAt(2, 6)]), work_dir=tmp_path / "x")
    assert drop_times(run.history) == [
        {"kind": "validation", "epoch": 1, "iteration": 2, "step": 2, "train/loss": 1.5, "val/accuracy": 0.1},
        {"kind": "epoch", "epoch": 1, "iteration": 3, "step": 3, "train/loss": 2.0},
        {"kind": "epoch", "epoch": 2, "iteration": 6, "step": 6, "train/loss": 5.0, "val/accuracy": 0.2},
    ]
    assert read(tmp_path / "x") == run.history.rows
    assert list(run.history[2])[-1] == "val/accuracy"


def test_iterations_outside_complete_epochs_have_a_last_row() -> None:
    assert drop_times(run_loop(HookBus(), iterations=5, epochs=None).history)[1:] == [
        {"kind": "end", "epoch": 2, "iteration": 5, "step": 5, "train/loss": 4.5}
    ]


def test_values_logged_at_the_end_of_an_epoch_and_of_a_validation_are_in_its_row() -> None:
    class Logging(Hook):
        def after_train_epoch(self, run: Run) -> None:
            run.log(f1=0.5)
            run.request_validation()

        def after_val(self, run: Run) -> None:
            run.log(bleu=7.0)

    history = run_loop(HookBus([Logging()])).history
    assert (history["train/f1"], history["val/bleu"], history["kind"]) == ([0.5] * 2, [7.0] * 2, ["epoch"] * 2)


def test_sanity_check_has_no_row_and_a_test_has_one() -> None:
    bus = HookBus()
    with bus.run(iterations=2) as run:
        run.begin_validation(sanity=True)
        run.end_validation({"accuracy": 0.0})
        for _ in range(2):
            bus.emit("after_train_iter", outputs={"loss": 1.0})
            run.begin_validation()
            run.end_validation({"accuracy": 1.0})
    assert run.history["kind"] == ["validation", "validation"]


def test_trainer_records_learning_rates_of_the_last_step_and_tokens() -> None:
    model = toys.net()
    optimizer = torch.optim.SGD([{"params": p, "name": n} for n, p in model.named_parameters()], lr=1.0)
    trainer = toys.trainer(
        model=model,
        optimizer=optimizer,
        scheduler=LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        scheduler_interval="step",
        val_loader={"a": toys.pairs(), "b": toys.pairs()},
        batch_tokens=lambda batch: batch[0].numel(),
        epochs=2,
    )
    history = trainer.fit().history
    assert history["lr/0.bias"] == [1 / 3, 1 / 6]
    assert history["tokens"] == [48, 96]
    assert {name for name in history.columns if name.startswith("val/")} == {"val/a/loss", "val/b/loss"}
    trainer.fit(epochs=3)
    trainer.validate()
    assert (history["epoch"], history["tokens"]) == ([1, 2, 3], [48, 96, 144])


def test_averages_have_results_of_their_own() -> None:
    hooks = [EMAHook(name="fast", momentum=0.5), EMAHook(name="slow", momentum=0.99)]
    history = toys.trainer(*hooks, val_loader=toys.pairs(), epochs=2).fit().history
    assert {name for name in history.columns if name.startswith("val/")} == {"val/loss", "val/slow/loss"}
    assert None not in history["val/slow/loss"]


# -- resume --------------------------------------------------------------------------------------


def train(work_dir: Path | None, *hooks: Hook, **options: Any) -> Run:
    hooks = (ValidateAt(2, 3, 5, 8), *hooks)
    return toys.trainer(*hooks, val_loader=toys.pairs(), work_dir=work_dir, **{"epochs": 3, **options}).fit()


class Interrupt(Hook):
    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def before_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            raise RuntimeError("interrupted")


@pytest.mark.parametrize("saved", [2, 3, 5, 6])
@pytest.mark.parametrize("new_directory", [True, False])
def test_resumed_history_is_that_of_an_uninterrupted_run(saved: int, new_directory: bool, tmp_path: Path) -> None:
    expected = drop_times(train(tmp_path / "whole").history)
    assert len(expected) == 6
    with pytest.raises(RuntimeError, match="interrupted"):
        train(tmp_path / "x", toys.Saver(iteration=saved), Interrupt(8))
    before = read(tmp_path / "x")
    path: Any = tmp_path / "x" / "checkpoints" / f"iter_{saved}.pth" if new_directory else "auto"
    directory = tmp_path / ("y" if new_directory else "x")
    run = train(directory, toys.Saver(iteration=0), resume=path)
    assert drop_times(run.history) == drop_times(read(directory)) == expected
    assert run.history["seconds"] == sorted(run.history["seconds"])
    assert not new_directory or read(tmp_path / "x") == before


def test_history_of_a_run_without_files_continues_from_the_checkpoint_beside_a_history(tmp_path: Path) -> None:
    train(tmp_path / "x", toys.Saver(iteration=3))
    run = train(None, toys.Saver(iteration=0), resume=tmp_path / "x" / "checkpoints" / "iter_3.pth")
    assert drop_times(run.history) == drop_times(read(tmp_path / "x"))


def test_history_before_a_restart_is_kept_under_another_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="interrupted"):
        train(tmp_path / "x", Interrupt(8))
    before = (tmp_path / "x" / HISTORY).read_bytes()
    run = train(tmp_path / "x", toys.Saver(iteration=0), resume="auto")
    assert (tmp_path / "x" / "history-old.jsonl").read_bytes() == before
    assert read(tmp_path / "x") == run.history.rows


def test_damaged_lines_are_reported_at_a_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path / "x", toys.Saver(iteration=3))
    path = tmp_path / "x" / HISTORY
    path.write_bytes(b"damaged\n" + path.read_bytes() + b'{"kind": "ep')
    expected = drop_times(train(tmp_path / "whole").history)
    run = train(tmp_path / "x", toys.Saver(iteration=0), resume="auto")
    assert "history.jsonl:1: invalid JSON" in caplog.text
    assert drop_times(run.history) == drop_times(read(tmp_path / "x")) == expected


# -- files and devices ---------------------------------------------------------------------------


def test_file_of_the_user_is_not_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / HISTORY).write_text("mine")
    run = run_loop(HookBus(), work_dir=tmp_path)
    assert (tmp_path / HISTORY).read_text() == "mine"
    assert f"{tmp_path / HISTORY} was not written by a run" in caplog.text
    assert len(run.history) == 2


def test_file_that_cannot_be_written_is_reported_once_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    class Fail(Hook):
        def before_epoch(self, run: Run) -> None:
            monkeypatch.undo()
            if run.epoch < 2:
                monkeypatch.setattr("hookbus._run.history_file.atomic_write", fail)

    run = run_loop(HookBus([Fail()]), work_dir=tmp_path / "x", epochs=3)
    assert caplog.text.count("history.jsonl cannot be written: No space left on device") == 1
    assert read(tmp_path / "x") == run.history.rows
    assert len(run.history) == 3


class Reads(TorchDispatchMode):
    """Count copies of tensors to the host."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_device_is_not_read_in_an_iteration() -> None:
    bus, reads = HookBus(), Reads()
    with bus.run(iterations=200) as run:
        for _ in range(200):
            with reads:
                bus.emit("after_train_iter", outputs={"loss": torch.tensor(1.0)})
    assert (run.history["train/loss"], reads.count) == ([1.0], 0)
    with reads:
        torch.tensor(1.0).item()
    assert reads.count == 1
