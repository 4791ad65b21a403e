"""Number of samples that a run counts, in the Trainer and in custom loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, HookBus, every, hookimpl
from hookbus.errors import ConfigError, LoopError
from tests import toys


class Samples(Hook):
    """Records the numbers of samples after each iteration, and the iterations of a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []
        self.due: list[int] = []

    def after_train_iter(self, run: Any) -> None:
        self.counts.append(run.samples_done)

    @hookimpl(when=every(4, unit="sample"))
    def before_train_iter(self, run: Any) -> None:
        self.due.append(run.iters_done)


def images(samples: list[tuple[Tensor]]) -> list[Tensor]:
    """Return a list of images, as for detection."""
    return [torch.zeros(3, 8 + int(x), 9) for (x,) in samples]


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(5.0)), batch_size=2, collate_fn=images, **options)


def fit(source: Any, **options: Any) -> Samples:
    def step(model: nn.Module, batch: Any) -> Tensor:
        return sum(parameter.sum() for parameter in model.parameters())  # type: ignore[return-value]

    samples = Samples()
    toys.trainer(samples, train_loader=source, step_fn=step, loss_fn=None, epochs=1, **options).fit()
    return samples


@pytest.mark.parametrize("workers", [0, 2])
def test_trainer_counts_the_indices_of_the_sampler(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    samples = fit(loader(num_workers=workers))

    assert samples.counts == [2, 4, 5]
    assert samples.due == [1]
    assert "batch_size" not in caplog.text


def loop(body: Callable[[HookBus, Any], None], **options: Any) -> Samples:
    samples = Samples()
    bus = HookBus([samples])
    with bus.run(epochs=1, **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            body(bus, run)
            bus.emit("after_train_epoch")
    return samples


def test_loop_that_moves_its_batches_counts_the_indices(caplog: pytest.LogCaptureFixture) -> None:
    def body(bus: HookBus, run: Any) -> None:
        for i, batch in run.batches(loader()):
            other = [image.to("meta") for image in batch]
            bus.emit("before_train_iter", batch_idx=i, batch=other)
            bus.emit("after_train_iter", batch_idx=i, batch=other)

    assert loop(body).counts == [2, 4, 5]
    assert "batch_size" not in caplog.text


def test_function_of_the_trainer_counts_the_samples() -> None:
    assert fit([3, 5], batch_size=lambda batch: batch).counts == [3, 8]


def test_function_of_a_custom_loop_counts_the_samples() -> None:
    def body(bus: HookBus, run: Any) -> None:
        for batch in (3, 5):
            bus.emit("after_train_iter", batch=batch)

    assert loop(body, batch_size=lambda batch: batch).counts == [3, 8]


def test_loop_that_emits_no_batch_counts_the_batches_of_its_loader() -> None:
    def body(bus: HookBus, run: Any) -> None:
        for i, _ in run.batches(loader()):
            bus.emit("after_train_iter", batch_idx=i)

    assert loop(body).counts == [2, 4, 5]


def test_skipped_batches_are_not_counted() -> None:
    def body(bus: HookBus, run: Any) -> None:
        for i, batch in run.batches(loader()):
            if i != 1:
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

    assert loop(body).counts == [2, 3]


def test_ambiguous_batch_is_reported_once_per_run(caplog: pytest.LogCaptureFixture) -> None:
    batches = list(loader())

    assert fit(batches, val_loader=batches).counts == [2, 4, 5]
    assert [record.getMessage()[:60] for record in caplog.records if "batch_size" in record.getMessage()] == [
        "batch_size: the number of samples of a batch is ambiguous, g"
    ]


def test_result_that_is_no_count_ends_the_run() -> None:
    with pytest.raises(LoopError, match=r"batch_size: the function must return an integer >= 0, got 1\.5\."):
        fit(loader(), batch_size=lambda batch: 1.5)


def test_function_that_is_not_callable_is_an_error() -> None:
    with pytest.raises(ConfigError, match="batch_size: should be callable, got 4"):
        fit(loader(), batch_size=4)
    with pytest.raises(ConfigError, match="batch_size: should be callable, got 4"):
        loop(lambda bus, run: None, batch_size=4)
