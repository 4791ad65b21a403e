"""A resumed run is bitwise identical to the uninterrupted run, in the Trainer and in a custom loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.checkpoint.state import read_checkpoint
from hookbus.data.rng import get_rng_state, seed_everything
from hookbus.hook import Hook
from hookbus.metrics.results import Metrics
from hookbus.testing import fingerprint
from hookbus.trainer.trainer import Trainer
from tests.coverings import covering_parameters
from tests.toys import OPTIMIZERS, SCHEDULES, Augmented, Saver, net, pairs


@pytest.fixture(autouse=True)
def _disable_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, since no test here simulates a power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


EPOCHS = 3  # of 5 batches each

POSITIONS: dict[str, tuple[str, int, int]] = {
    # point at which the checkpoint is requested, completed iterations, micro-batches per optimizer step
    "before the first step": ("before_epoch", 0, 1),
    "within an epoch": ("after_train_iter", 7, 1),
    "within an accumulation": ("after_train_iter", 7, 2),
    "at the last batch of the first epoch": ("after_train_iter", 5, 1),
    "at a last batch within an accumulation": ("after_train_iter", 5, 2),
    "at the end of an epoch": ("after_epoch", 10, 1),
    "at the end of an epoch within an accumulation": ("after_epoch", 5, 2),
}
CHOICES: tuple[Sequence[Any], ...] = (tuple(POSITIONS), tuple(OPTIMIZERS), tuple(SCHEDULES), (0, 2), (False, True))


@dataclass(frozen=True)
class Case:
    position: str
    optimizer: str = "SGD"
    schedule: str = "step"
    workers: int = 0
    custom_loop: bool = False
    precision: str = "fp32"

    def __str__(self) -> str:
        loop = "custom loop" if self.custom_loop else "Trainer"
        return f"{self.position}, {self.optimizer}, per {self.schedule}, {self.workers} workers, {loop}"


class StatefulHook(Hook):
    """Hook with a state, a metric window and requested records."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.zeros(())
        self.count = 0
        self.records: list[tuple[int, dict[str, float]]] = []

    def before_run(self, run: Run) -> None:
        self.window = run.metrics.window("stateful")

    def after_train_iter(self, run: Run, loss: torch.Tensor) -> None:
        self.count += 1
        self.average = 0.5 * self.average + 0.5 * loss.detach()
        run.log(average=self.average, lr=run.optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]
        if self.count % 4 == 0:
            run.request_record(self.window, self.deliver)

    def deliver(self, metrics: Metrics, step: int) -> None:
        self.records.append((step, dict(metrics)))

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average, self.count = state["average"], state["count"]


def train(case: Case, directory: Path, resume: Path | None, seed: int) -> tuple[dict[str, str], StatefulHook, Saver]:
    """Train from scratch or from a checkpoint.

    Returns:
        Fingerprints of the final states, and the hooks of the run.
    """
    seed_everything(seed)
    point, iteration, accumulate = POSITIONS[case.position]
    saver, hook, model = Saver(point, iteration), StatefulHook(), net()
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    scheduler = SCHEDULES[case.schedule](optimizer)
    workers = {"num_workers": case.workers, "persistent_workers": case.workers > 0}
    loader = DataLoader(Augmented(), batch_size=4, shuffle=True, **workers)
    fit = run_custom_loop if case.custom_loop else run_trainer
    run = fit(case, [saver, hook], model, optimizer, scheduler, loader, accumulate, directory, resume or "never")
    return get_fingerprints(run, model, optimizer, scheduler, hook), hook, saver


def get_fingerprints(run: Run, model: nn.Module, optimizer: Any, scheduler: Any, hook: StatefulHook) -> dict[str, str]:
    state = run.state_dict()
    clock = {name: value for name, value in state["clock"].items() if "second" not in name}
    states = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": {name: value for name, value in scheduler.state_dict().items() if not callable(value)},
        "scaler": run.scaler.state_dict() if run.scaler is not None else {},
        "rng": get_rng_state(),
        "hook": hook.state_dict(),
        "clock": clock,
        **{name: state[name] for name in ("metrics", "accumulated", "validated_at", "seed")},
    }
    return {name: fingerprint(value) for name, value in states.items()}


def run_trainer(
    case: Case, hooks: list[Hook], model: Any, optimizer: Any, scheduler: Any, loader: Any, accumulate: int, *paths: Any
) -> Run:
    work_dir, resume = paths
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


def run_custom_loop(
    case: Case, hooks: list[Hook], model: Any, optimizer: Any, scheduler: Any, loader: Any, accumulate: int, *paths: Any
) -> Run:
    work_dir, resume = paths
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
            for _ in batches(run):
                if case.schedule == "step":
                    scheduler.step()
            run.request_validation()
            bus.emit("after_train_epoch")
            if case.schedule != "step":
                scheduler.step(*([run.metrics.results["val/loss"]] if case.schedule == "metric" else []))
    return run


def compare(case: Case, tmp_path: Path) -> None:
    expected, expected_hook, saver = train(case, tmp_path / "uninterrupted", None, seed=1)
    [file] = saver.files
    # Another seed: everything that depends on the seed has to come from the checkpoint.
    resumed, hook, _ = train(case, tmp_path / "resumed", file, seed=99)

    assert resumed == expected
    assert hook.records == expected_hook.records[len(expected_hook.records) - len(hook.records) :]
    assert len(hook.records) >= 1


def select_cases() -> list[Case]:
    """Return cases that contain each pair of values of any two parameters."""
    cases = []
    for (i, position), (j, schedule) in product(enumerate(POSITIONS), enumerate(SCHEDULES)):
        optimizer = list(OPTIMIZERS)[(i + j) % 2]
        cases.append(
            Case(position, optimizer, schedule, workers=2 * ((i // 2 + j) % 2), custom_loop=(i + j // 2) % 2 == 1)
        )
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("case", select_cases(), ids=str)
def test_final_states_equal_those_of_the_uninterrupted_run(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "optimizer", "schedule", "workers", "custom_loop"), covering_parameters(CHOICES, 3)
)
def test_final_states_are_equal_with_every_three_values(
    position: str, optimizer: str, schedule: str, workers: int, custom_loop: bool, tmp_path: Path
) -> None:
    compare(Case(position, optimizer, schedule, workers, custom_loop), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("position", ["within an epoch", "within an accumulation"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_final_states_are_equal_with_reduced_precision(position: str, precision: str, tmp_path: Path) -> None:
    compare(Case(position, precision=precision), tmp_path)


def test_selected_cases_contain_all_pairs() -> None:
    choices = [
        (case.position, case.optimizer, case.schedule, case.workers, case.custom_loop) for case in select_cases()
    ]
    for a in range(5):
        for b in range(a):
            assert {(choice[a], choice[b]) for choice in choices} == set(product(CHOICES[a], CHOICES[b]))


def test_final_states_differ_if_the_checkpoint_was_modified(tmp_path: Path) -> None:
    case = Case("within an epoch")
    expected, _, saver = train(case, tmp_path / "uninterrupted", None, seed=1)
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
        with pytest.warns(UserWarning, match="no valid sidecar"):
            resumed, _, _ = train(case, tmp_path / name, tmp_path / f"{name}.pth", seed=99)
        assert resumed["model"] != expected["model"], name


@pytest.mark.parametrize("accumulate", [1, 2])
def test_model_that_the_first_forward_pass_initializes_is_exact(tmp_path: Path, accumulate: int) -> None:
    def train(iterations: int, resume: str) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Linear(3, 2))
        trainer = Trainer(
            model,
            lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            nn.functional.cross_entropy,
            [(torch.full((4, 2), float(i)), torch.tensor([0, 1, 0, 1])) for i in range(6)],
            iterations=iterations,
            accumulate=accumulate,
            work_dir=tmp_path / "run",
            resume=resume,
            hooks=[Saver()],
            default_hooks=False,
            device="cpu",
        )
        trainer.fit()
        return fingerprint(trainer.model.state_dict())

    train(3, "never")
    resumed = train(6, "auto")
    assert resumed == train(6, "never")
