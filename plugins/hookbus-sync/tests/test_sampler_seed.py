from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Sampler

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_sync import DistSamplerSeedHook

EXPECTED = [0, "begins", 1, "begins", 2, "begins"]


class Told(Sampler[int]):
    """Notes the epochs that it is told, and when it is iterated."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        self.calls.append("begins")
        return iter([0, 1])


def loader(sampler: Told, batched: bool = False) -> DataLoader[Any]:
    data: Any = torch.zeros(2, 1)
    if batched:
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 1, drop_last=False))
    return DataLoader(data, sampler=sampler)


@pytest.mark.parametrize("batched", [False, True])
def test_a_loop_of_ones_own_has_its_sampler_told_before_each_epoch(batched: bool) -> None:
    sampler = Told()
    batches, bus = loader(sampler, batched), HookBus([DistSamplerSeedHook()])
    with bus.run(epochs=3, train_loader=batches) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in enumerate(batches):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
            bus.emit("after_train_epoch")

    assert sampler.calls == EXPECTED


def test_the_trainer_tells_it_once_with_the_hook_as_without(caplog: pytest.LogCaptureFixture) -> None:
    for hooks in ([], [DistSamplerSeedHook()]):
        sampler, model = Told(), nn.Linear(1, 1)
        with caplog.at_level(logging.INFO, "hookbus"):
            Trainer(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                step_fn=lambda model, batch: model(batch).mean(),
                train_loader=loader(sampler),
                epochs=3,
                work_dir=None,
                hooks=hooks,
                default_hooks=False,
                device="cpu",
            ).fit()
        assert sampler.calls == EXPECTED

    assert (
        "dist_sampler_seed: the Trainer tells samplers the epoch by itself, so there is nothing to do."
        in caplog.messages
    )


def test_a_loader_without_such_a_sampler_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    bus = HookBus([DistSamplerSeedHook()])
    with caplog.at_level(logging.INFO, "hookbus"), bus.run(train_loader=[1, 2]):
        bus.emit("before_train_epoch")

    assert "dist_sampler_seed: no sampler wants to know the epoch, so there is nothing to do." in caplog.messages


def test_a_loader_that_nobody_named_is_an_error_at_the_start() -> None:
    bus = HookBus([DistSamplerSeedHook()])
    with pytest.raises(ConfigError, match="give bus.run a train_loader="), bus.run():
        bus.emit("before_train_epoch")


def test_it_keeps_what_every_hook_promises() -> None:
    class WithLoader(DistSamplerSeedHook):
        def before_run(self, run: Any) -> None:
            run.train_loader = loader(Told())

    check_hook(WithLoader)
