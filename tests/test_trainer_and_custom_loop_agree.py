"""Tests that a training by the Trainer and by a custom loop has bitwise identical results."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import read_checkpoint
from hookbus.data.rng import seed_everything
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook, read_jsonl

SEED, EPOCHS, ACCUMULATE = 3, 3, 2


class Augmented(TensorDataset):
    """Dataset with random augmentation. A subclass, so that it is not assumed to be free of random numbers."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any, DataLoader[Any], DataLoader[Any]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(44, 6, generator=generator)
    y = (x.sum(1) > 0).long()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train = DataLoader(Augmented(x, y), batch_size=4, shuffle=True)
    val = DataLoader(TensorDataset(x, y), batch_size=16)
    return model, optimizer, scheduler, train, val


def hooks() -> list[Hook]:
    return [CheckpointHook(interval=4, by_epoch=False, max_keep_ckpts=2), JsonlHook(interval=3)]


def by_trainer(work_dir: Path) -> tuple[nn.Module, Run]:
    model, optimizer, scheduler, train, val = parts()
    trainer = Trainer(
        model,
        optimizer,
        functional.cross_entropy,
        train,
        val,
        scheduler=scheduler,
        epochs=EPOCHS,
        accumulate=ACCUMULATE,
        metrics=["accuracy"],
        hooks=hooks(),
        default_hooks=False,
        seed=SEED,
        device="cpu",
        work_dir=work_dir,
    )
    return model, trainer.fit()


def by_custom_loop(work_dir: Path) -> tuple[nn.Module, Run]:
    model, optimizer, scheduler, train, val = parts()

    def validate() -> dict[str, float]:
        loss, hits, count = 0.0, 0, 0
        for x, y in val:
            output = model(x)
            loss += functional.cross_entropy(output, y).double() * len(y)
            hits += int((output.argmax(1) == y).sum())
            count += len(y)
        return {"loss": float(loss / count), "accuracy": hits / count}

    seed_everything(SEED)
    bus = HookBus(hooks())
    with bus.run(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        epochs=EPOCHS,
        seed=SEED,
        work_dir=work_dir,
        validate=validate,
        train_loader=train,
    ) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, (x, y) in run.batches(train):
                bus.emit("before_train_iter", batch_idx=i, batch=(x, y))
                if run.iters_done % ACCUMULATE == 0:
                    optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                (loss / ACCUMULATE).backward()
                if run.iters_done % ACCUMULATE == ACCUMULATE - 1:
                    optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=(x, y), outputs={"loss": loss})
            run.request_validation()
            bus.emit("after_train_epoch")
            scheduler.step()
    return model, run


def rows(work_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of the log without the wall-clock time."""
    return [{k: v for k, v in row.items() if k != "time"} for row in read_jsonl(work_dir / "logs" / "metrics.jsonl")]


def contents(work_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each checkpoint and a hash of the state that a resume restores."""
    for path in sorted((work_dir / "checkpoints").glob("*.pth")):
        checkpoint = read_checkpoint(path)
        selected = {key: checkpoint.get(key) for key in ("state_dict", "optimizer", "scheduler", "grads", "rng")}
        clock = {key: value for key, value in checkpoint["loop"]["clock"].items() if "second" not in key}
        yield path.name, fingerprint({**selected, "clock": clock, "metrics": checkpoint["loop"]["metrics"]})


@pytest.mark.slow
def test_trainer_and_custom_loop_have_equal_weights_log_and_files(tmp_path: Path) -> None:
    model, run = by_trainer(tmp_path / "trainer")
    custom_model, custom_run = by_custom_loop(tmp_path / "own")

    assert fingerprint(model.state_dict()) == fingerprint(custom_model.state_dict())
    assert dict(run.metrics.results) == dict(custom_run.metrics.results)
    assert rows(tmp_path / "trainer") == rows(tmp_path / "own")
    assert list(contents(tmp_path / "trainer")) == list(contents(tmp_path / "own"))
    assert run.steps_done == custom_run.steps_done == 33 // 2


@pytest.mark.slow
@pytest.mark.parametrize("train_function", [by_trainer, by_custom_loop])
def test_repeated_training_has_equal_weights(tmp_path: Path, train_function: Any) -> None:
    first, _ = train_function(tmp_path / "first")
    second, _ = train_function(tmp_path / "second")

    assert fingerprint(first.state_dict()) == fingerprint(second.state_dict())
