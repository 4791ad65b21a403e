"""A resumed run is the run that was never interrupted, bit for bit, in the Trainer and in a loop of one's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus.bus import HookBus
from hookbus.hook import Hook
from hookbus.loop import Trainer
from hookbus.metrics import Metrics
from hookbus.run import Run
from hookbus.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus.training.rng import get_rng_state, seed_everything
from tests.toys import OPTIMIZERS, SCHEDULES, Augmented, Saver, net, pairs


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


EPOCHS = 3  # of 5 batches each

MOMENTS: dict[str, tuple[str, int, int]] = {
    # where the checkpoint is asked for, after how many iterations, and micro-batches per update
    "before the first step": ("before_epoch", 0, 1),
    "in the middle of an epoch": ("after_train_iter", 7, 1),
    "in the middle of an accumulation": ("after_train_iter", 7, 2),
    "at the last batch of the first epoch": ("after_train_iter", 5, 1),
    "at a last batch in the middle of an accumulation": ("after_train_iter", 5, 2),
    "at the end of an epoch": ("after_epoch", 10, 1),
    "at the end of an epoch in the middle of an accumulation": ("after_epoch", 5, 2),
}


@dataclass(frozen=True)
class Case:
    moment: str
    optimizer: str = "SGD"
    schedule: str = "step"
    workers: int = 0
    own_loop: bool = False
    precision: str = "fp32"

    def __str__(self) -> str:
        loop = "own loop" if self.own_loop else "Trainer"
        return f"{self.moment}, {self.optimizer}, per {self.schedule}, {self.workers} workers, {loop}"


class Remembers(Hook):
    """Has a state, a window and records, as hooks do."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.zeros(())
        self.seen = 0
        self.records: list[tuple[int, dict[str, float]]] = []

    def before_run(self, run: Run) -> None:
        self.window = run.metrics.window("remembers")

    def after_train_iter(self, run: Run, loss: torch.Tensor) -> None:
        self.seen += 1
        self.average = 0.5 * self.average + 0.5 * loss.detach()
        run.log(average=self.average, lr=run.optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]
        if self.seen % 4 == 0:
            run.request_record(self.window, self.deliver)

    def deliver(self, metrics: Metrics, step: int) -> None:
        self.records.append((step, dict(metrics)))

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average, self.seen = state["average"], state["seen"]


def train(case: Case, directory: Path, resume: Path | None, seed: int) -> tuple[dict[str, str], Remembers, Saver]:
    """A whole training, or the rest of one: what it leaves behind, in a form that can be compared."""
    seed_everything(seed)
    point, iteration, accumulate = MOMENTS[case.moment]
    saver, hook, model = Saver(point, iteration), Remembers(), net()
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    scheduler = SCHEDULES[case.schedule](optimizer)
    workers = {"num_workers": case.workers, "persistent_workers": case.workers > 0}
    loader = DataLoader(Augmented(), batch_size=4, shuffle=True, **workers)
    fit = by_hand if case.own_loop else by_trainer
    run = fit(case, [saver, hook], model, optimizer, scheduler, loader, accumulate, directory, resume or "never")
    return left_behind(run, model, optimizer, scheduler, hook), hook, saver


def left_behind(run: Run, model: nn.Module, optimizer: Any, scheduler: Any, hook: Remembers) -> dict[str, str]:
    own = run.state_dict()
    clock = {name: value for name, value in own["clock"].items() if "second" not in name}
    parts = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": {name: value for name, value in scheduler.state_dict().items() if not callable(value)},
        "scaler": run.scaler.state_dict() if run.scaler is not None else {},
        "rng": get_rng_state(),
        "hook": hook.state_dict(),
        "clock": clock,
        **{name: own[name] for name in ("metrics", "accumulated", "validated_at", "seed")},
    }
    return {name: fingerprint(part) for name, part in parts.items()}


def by_trainer(
    case: Case, hooks: list[Hook], model: Any, optimizer: Any, scheduler: Any, loader: Any, accumulate: int, *where: Any
) -> Run:
    work_dir, resume = where
    return Trainer(
        model,
        optimizer,
        nn.functional.cross_entropy,
        loader,
        pairs(2),
        scheduler=scheduler,
        scheduler_interval="step" if case.schedule == "step" else "epoch",
        epochs=EPOCHS,
        accumulate=accumulate,
        precision=case.precision,  # type: ignore[arg-type]
        clip_grad_norm=1.0,
        hooks=hooks,
        default_hooks=False,
        device="cpu",
        work_dir=work_dir,
        resume=resume,
    ).fit()


def by_hand(
    case: Case, hooks: list[Hook], model: Any, optimizer: Any, scheduler: Any, loader: Any, accumulate: int, *where: Any
) -> Run:
    work_dir, resume = where
    bus = HookBus(hooks)

    def validate() -> dict[str, Any]:
        return {"loss": sum(nn.functional.cross_entropy(model(x), y) for x, y in pairs(2)) / 2}

    def batches(run: Run) -> Iterator[int]:
        for i, (inputs, targets) in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=(inputs, targets))
            if run.iters_done % accumulate == 0:
                optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            (loss / accumulate).backward()
            if (run.iters_done + 1) % accumulate == 0:
                optimizer.step()
                yield i
            bus.emit("after_train_iter", batch_idx=i, batch=(inputs, targets), outputs={"loss": loss})

    options = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "validate": validate, "epochs": EPOCHS}
    with bus.run(**options, work_dir=work_dir, resume=resume) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for _update in batches(run):
                if case.schedule == "step":
                    scheduler.step()
            run.request_validation()
            bus.emit("after_train_epoch")
            if case.schedule != "step":
                scheduler.step(*([run.metrics.results["val/loss"]] if case.schedule == "metric" else []))
    return run


def compare(case: Case, tmp_path: Path) -> None:
    whole, whole_hook, saver = train(case, tmp_path / "whole", None, seed=1)
    [file] = saver.files
    rest, hook, _ = train(case, tmp_path / "rest", file, seed=99)

    assert rest == whole
    assert hook.records == whole_hook.records[len(whole_hook.records) - len(hook.records) :]
    assert len(hook.records) >= 1


def selected() -> list[Case]:
    """One case for each pair of values of any two of the choices."""
    cases = []
    for (i, moment), (j, schedule) in product(enumerate(MOMENTS), enumerate(SCHEDULES)):
        optimizer = list(OPTIMIZERS)[(i + j) % 2]
        cases.append(Case(moment, optimizer, schedule, workers=2 * ((i // 2 + j) % 2), own_loop=(i + j // 2) % 2 == 1))
    return cases


@pytest.mark.parametrize("case", selected(), ids=str)
def test_what_is_left_behind_is_the_same(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("own_loop", [False, True], ids=["Trainer", "own loop"])
@pytest.mark.parametrize("workers", [0, 2], ids="{} workers".format)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_in_every_combination(
    moment: str, optimizer: str, schedule: str, workers: int, own_loop: bool, tmp_path: Path
) -> None:
    compare(Case(moment, optimizer, schedule, workers, own_loop), tmp_path)


@pytest.mark.parametrize("moment", ["in the middle of an epoch", "in the middle of an accumulation"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_with_reduced_precision(moment: str, precision: str, tmp_path: Path) -> None:
    compare(Case(moment, precision=precision), tmp_path)


def test_the_pairs_are_complete() -> None:
    choices = [(each.moment, each.optimizer, each.schedule, each.workers, each.own_loop) for each in selected()]
    values = [MOMENTS, OPTIMIZERS, SCHEDULES, [0, 2], [False, True]]
    for a in range(5):
        for b in range(a):
            assert {(each[a], each[b]) for each in choices} == set(product(values[a], values[b]))


def test_a_resume_is_not_the_same_where_the_checkpoint_was_changed(tmp_path: Path) -> None:
    case = Case("in the middle of an epoch")
    whole, _, saver = train(case, tmp_path / "whole", None, seed=1)
    checkpoint = read_checkpoint(saver.files[0])
    changes: dict[str, Callable[[], Any]] = {
        "rng": lambda: checkpoint["rng"].__setitem__("torch", torch.Generator().manual_seed(5).get_state()),
        "optimizer": lambda: checkpoint["optimizer"]["state"][0]["momentum_buffer"].add_(1e-3),
        "seed": lambda: checkpoint["loop"].__setitem__("seed", 5),
    }
    for name, change in changes.items():
        checkpoint = read_checkpoint(saver.files[0])
        change()
        torch.save(checkpoint, tmp_path / f"{name}.pth")
        with pytest.warns(UserWarning, match="it has no sidecar"):
            rest, _, _ = train(case, tmp_path / name, tmp_path / f"{name}.pth", seed=99)
        assert rest["model"] != whole["model"], name
