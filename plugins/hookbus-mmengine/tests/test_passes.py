"""Order of the data after a resume in a new process, in which neither the user nor the Runner has set a seed."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.runner import loops

from hookbus import Hook, HookBus
from hookbus.testing import HostTask
from hookbus_checkpoint import CheckpointHook
from hookbus_mmengine import HookbusHook
from hookbus_mmengine.passes import PassIterator

from .adapter import build_runner

TOTAL = 16
"""Iterations of a training, of 6 per pass over the data."""


def build_loader(order: str, data: Any, workers: int) -> Any:
    """Return the loader of an order, or its configuration."""
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    if order in ("DefaultSampler", "InfiniteSampler"):  # built by the Runner, with its seed
        sampler = {"type": order, "shuffle": True}
        return {"dataset": data, "sampler": sampler, "collate_fn": {"type": "default_collate"}, **options}
    orders: dict[str, dict[str, Any]] = {
        "shuffle": {"shuffle": True},
        "persistent workers": {"shuffle": True, "persistent_workers": True},
        "generator": {"shuffle": True, "generator": torch.Generator().manual_seed(np.random.randint(99))},
        "sampler with a generator": {"sampler": RandomSampler(data, generator=torch.Generator())},
        "DefaultSampler object": {"sampler": DefaultSampler(data)},
        "InfiniteSampler object": {"sampler": InfiniteSampler(data)},
    }
    return DataLoader(data, **options, **orders[order])


class SaveAndStop(Hook):
    """Hook that requests a checkpoint and a stop in an iteration, given as number from 1."""

    makes_requests = True

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def after_train_iter(self, run: Any) -> None:
        if run.iters_done == self.iteration:
            run.request_save()
            run.request_stop()


class Trainings:
    """Trainings, each of which has the random numbers of a new process.

    Args:
        directory: Directory of the files.
        by_epoch: Whether the loop consists of epochs.
        order: Name of the order.
        workers: Number of workers of the loaders.
        checkpoints: Owner of the checkpoints.
        is_configured: Whether the hooks are those of an entry in `custom_hooks`. Default: False.
    """

    def __init__(
        self,
        directory: Path,
        by_epoch: bool,
        order: str,
        workers: int,
        checkpoints: str,
        *,
        is_configured: bool = False,
    ) -> None:
        self.directory, self.by_epoch, self.checkpoints = directory, by_epoch, checkpoints
        self.order, self.workers, self.is_configured = order, workers, is_configured

    def train(self, name: str, *hooks: Any, process: int, resume: bool = False) -> tuple[list[Tensor], Tensor]:
        """Train, and return the inputs of the iterations and the weights."""
        random.seed(process)
        np.random.seed(process)
        torch.manual_seed(process)
        task, directory, by_host = HostTask(), self.directory / name, self.checkpoints == "host"
        validation = {"num_workers": 1, "persistent_workers": True} if self.order == "persistent workers" else {}
        options: dict[str, Any] = {"checkpoints": self.checkpoints, "work_dir": directory / "hookbus"}
        if resume and not by_host:
            options["resume"] = "auto"
        all_hooks = [*hooks, *([] if by_host else [CheckpointHook(save_best=False)])]
        runner = build_runner(
            task,
            directory,
            resume=resume and by_host,
            train_dataloader=build_loader(self.order, task.train_data(), self.workers),
            val_dataloader=DataLoader(task.val_data(), 4, **validation),
            train_cfg={"by_epoch": True, "max_epochs": 3}
            if self.by_epoch
            else {"by_epoch": False, "max_iters": TOTAL, "val_interval": 3},
            default_hooks={"checkpoint": None},
            custom_hooks=[HookbusHook(all_hooks, **options)] if self.is_configured else None,
        )
        if not self.is_configured:
            HookBus(all_hooks).attach(runner, **options)
        runner.train()
        return task.inputs, torch.cat([weight.detach().flatten() for weight in runner.model.parameters()])


def check_resume(trainings: Trainings, stop: int) -> None:
    """Check that a training which stops and is resumed in another process equals the uninterrupted one."""
    inputs, weights = trainings.train("whole", process=1)
    trainings.train("parts", SaveAndStop(stop), process=1)
    resumed_inputs, resumed_weights = trainings.train("parts", process=2, resume=True)
    assert torch.equal(torch.stack(resumed_inputs), torch.stack(inputs[stop:]))
    assert torch.equal(resumed_weights, weights)


@pytest.fixture(autouse=True)
def _leave_no_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the loop begin a pass at once, before which it sleeps for two seconds, and end the workers of its loader."""
    monkeypatch.setattr(loops, "time", SimpleNamespace(sleep=lambda seconds: None))
    yield
    gc.collect()  # Runner and loop refer to each other


WORKERS = pytest.mark.slow  # each pass starts and ends processes


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    ("order", "workers", "checkpoints", "stop"),
    [
        ("shuffle", 0, "host", 2),
        ("shuffle", 0, "hookbus", 8),
        ("shuffle", 0, "host", 12),
        pytest.param("shuffle", 1, "hookbus", 2, marks=WORKERS),
        pytest.param("shuffle", 1, "host", 8, marks=WORKERS),
        pytest.param("persistent workers", 1, "host", 2, marks=WORKERS),
        pytest.param("persistent workers", 1, "hookbus", 8, marks=WORKERS),
        pytest.param("persistent workers", 1, "host", 12, marks=WORKERS),
        ("generator", 0, "host", 8),
        pytest.param("generator", 1, "hookbus", 2, marks=WORKERS),
        pytest.param("sampler with a generator", 1, "host", 12, marks=WORKERS),
        ("DefaultSampler", 0, "hookbus", 6),
        pytest.param("DefaultSampler", 1, "host", 8, marks=WORKERS),
        pytest.param("DefaultSampler object", 1, "hookbus", 2, marks=WORKERS),
    ],
)
def test_order_after_a_resume_is_that_of_the_uninterrupted_training(
    order: str, workers: int, checkpoints: str, stop: int, by_epoch: bool, tmp_path: Path
) -> None:
    check_resume(Trainings(tmp_path, by_epoch, order, workers, checkpoints), stop)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 8])
def test_order_is_continued_by_hooks_of_a_configuration(stop: int, tmp_path: Path) -> None:
    check_resume(Trainings(tmp_path, False, "shuffle", 1, "host", is_configured=True), stop)


@pytest.mark.parametrize(
    ("order", "workers", "checkpoints"),
    [
        ("InfiniteSampler", 0, "host"),
        pytest.param("InfiniteSampler", 1, "hookbus", marks=WORKERS),
        pytest.param("InfiniteSampler object", 1, "host", marks=WORKERS),
    ],
)
def test_order_without_an_end_is_continued(order: str, workers: int, checkpoints: str, tmp_path: Path) -> None:
    check_resume(Trainings(tmp_path, False, order, workers, checkpoints), stop=8)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=WORKERS)])
def test_order_and_weights_are_those_of_a_runner_without_a_bus(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = Trainings(tmp_path, False, "shuffle", workers, "host")
    inputs, weights = trainings.train("with", process=1)
    monkeypatch.setattr(loops, "_InfiniteDataloaderIterator", PassIterator.__base__)
    monkeypatch.setattr(HookBus, "attach", lambda *arguments, **options: None)
    plain_inputs, plain_weights = trainings.train("without", process=1)
    assert torch.equal(torch.stack(inputs), torch.stack(plain_inputs))
    assert torch.equal(weights, plain_weights)
