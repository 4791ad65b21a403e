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

EXPECTED = [0, "iter", 1, "iter", 2, "iter"]


class RecordingSampler(Sampler[int]):
    """Record the epochs and the start of each iteration over the sampler."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        self.calls.append("iter")
        return iter([0, 1])


def loader(sampler: RecordingSampler, batched: bool = False) -> DataLoader[Any]:
    data: Any = torch.zeros(2, 1)
    if batched:
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 1, drop_last=False))
    return DataLoader(data, sampler=sampler)


@pytest.mark.parametrize("batched", [False, True])
def test_sampler_of_a_custom_loop_receives_the_epoch_before_each_epoch(batched: bool) -> None:
    sampler = RecordingSampler()
    batches, bus = loader(sampler, batched), HookBus([DistSamplerSeedHook()])
    with bus.run(epochs=3, train_loader=batches) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in enumerate(batches):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
            bus.emit("after_train_epoch")

    assert sampler.calls == EXPECTED


def test_hook_is_a_no_op_in_the_trainer(caplog: pytest.LogCaptureFixture) -> None:
    for hooks in ([], [DistSamplerSeedHook()]):
        sampler, model = RecordingSampler(), nn.Linear(1, 1)
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
        "dist_sampler_seed: no-op, because the Trainer calls `set_epoch` of samplers automatically." in caplog.messages
    )


def test_hook_is_a_no_op_without_a_sampler_with_set_epoch(caplog: pytest.LogCaptureFixture) -> None:
    bus = HookBus([DistSamplerSeedHook()])
    with caplog.at_level(logging.INFO, "hookbus"), bus.run(train_loader=[1, 2]):
        bus.emit("before_train_epoch")

    assert "dist_sampler_seed: no-op, because the training loader has no sampler with `set_epoch`." in caplog.messages


def test_missing_train_loader_is_an_error() -> None:
    bus = HookBus([DistSamplerSeedHook()])
    with pytest.raises(ConfigError, match="^hook 'dist_sampler_seed' .*Pass `train_loader` to"), bus.run():
        pytest.fail("the loop has started")


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    class WithLoader(DistSamplerSeedHook):
        def check(self, run: Any) -> None: ...

        def before_run(self, run: Any) -> None:
            run.train_loader = loader(RecordingSampler())

    check_hook(WithLoader)
