"""A changed batch size: epochs, schedules, limits and a resumed run follow, in the Trainer and in a custom loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import Hook, HookBus, Run, Trainer, hookimpl, last
from hookbus.errors import ConfigError, LoopError
from tests.toys import Saver

DATA: Any = [(torch.full((4,), float(i)), i % 2) for i in range(12)]


class Resize(Hook):
    """Set the batch size when the training starts from scratch, and record what is read."""

    def __init__(self, size: int | None = 4, stop_at: int | None = None) -> None:
        super().__init__()
        self.size, self.stop_at = size, stop_at
        self.sizes: list[int] = []
        self.inputs: list[float] = []
        self.last: list[int] = []
        self.lengths: list[int | None] = []

    def before_train(self, run: Run) -> None:
        if run.iters_done == 0 and self.size is not None:
            run.set_batch_size(self.size)
        self.lengths.append(run.epoch_length)

    def after_train_iter(self, run: Run, batch: Any) -> None:
        self.sizes.append(len(batch[0]))
        self.inputs += batch[0][:, 0].tolist()
        if run.iters_done == self.stop_at:
            run.request_stop("test")

    @hookimpl(when=last)
    def before_train_iter(self, run: Run) -> None:
        self.last.append(run.current("iter"))


def build(hooks: list[Hook], **settings: Any) -> Trainer:
    model = nn.Linear(4, 2)
    loader: Any = DataLoader(DATA, batch_size=2, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"epochs": 2, "work_dir": None, "default_hooks": False, "seed": 0, **settings}
    return Trainer(model, optimizer, nn.functional.cross_entropy, loader, hooks=hooks, **options)


def test_epochs_and_schedules_have_the_new_length() -> None:
    run = build([hook := Resize()]).fit()
    assert hook.sizes == [4] * 6
    assert (run.epochs_done, run.iters_done, run.samples_done) == (2, 6, 24)
    assert hook.lengths == [3]
    assert hook.last == [6]
    assert sorted(hook.inputs[:12]) == sorted(hook.inputs[12:]) == list(map(float, range(12)))


def test_order_is_that_of_a_loader_with_this_size() -> None:
    build([changed := Resize()]).fit()
    trainer = build([plain := Resize(None)])
    trainer.train_loader = DataLoader(DATA, batch_size=4, shuffle=True)
    trainer.fit()
    assert changed.inputs == plain.inputs


@pytest.mark.parametrize("iterations", [1, 3, 4])
def test_resumed_run_has_the_batch_size_of_the_checkpoint(iterations: int, tmp_path: Path) -> None:
    build([whole := Resize()]).fit()
    settings = {"work_dir": tmp_path / "run"}
    build([first := Resize(stop_at=iterations), Saver("after_train_iter", iterations)], **settings).fit()
    # The hook that has set it is absent.
    run = build([second := Resize(None)], resume="auto", **settings).fit()
    assert first.inputs + second.inputs == whole.inputs
    assert second.lengths == [3]
    assert (run.train_loader.batch_size, run.iters_done) == (4, 6)


def test_second_training_keeps_the_batch_size() -> None:
    trainer = build([hook := Resize()], epochs=1)
    trainer.fit()
    run = trainer.fit(epochs=2)
    assert hook.sizes == [4] * 6
    assert run.epoch_length == 3


def test_scheduler_that_is_too_short_for_it_is_refused_before_the_first_iteration() -> None:
    trainer = build([Resize(1)])
    trainer.scheduler.scheduler = scheduler = torch.optim.lr_scheduler.OneCycleLR(
        trainer.optimizer, 0.1, total_steps=12
    )
    trainer.scheduler._scheduled, trainer.scheduler.interval = [scheduler], "step"
    with pytest.raises(ConfigError, match="built for 12 steps, and the run needs 24"):
        trainer.fit()


def test_custom_loop_reads_the_copy_of_its_loader() -> None:
    loader: Any = DataLoader(DATA, batch_size=2)
    bus, sizes = HookBus([Resize(5)]), []
    with bus.run(train_loader=loader, epochs=2, seed=0) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
                sizes.append(len(batch[0]))
    assert sizes == [5, 5, 2] * 2
    assert run.epoch_length == 3


def test_other_loaders_of_a_loop_keep_their_size() -> None:
    loader: Any = DataLoader(DATA, batch_size=2)
    other: Any = DataLoader(DATA, batch_size=6)
    bus = HookBus()
    with bus.run(train_loader=loader, epochs=1) as run:
        run.set_batch_size(12)
        for _ in run.epochs():
            assert [len(batch[0]) for _, batch in run.batches(other)] == [6, 6]


@pytest.mark.parametrize(("drop_last", "expected"), [(False, 12), (True, 12)])
def test_largest_size_is_the_number_of_samples(drop_last: bool, expected: int) -> None:
    loader: Any = DataLoader(DATA, batch_size=5, drop_last=drop_last)
    bus = HookBus()
    with bus.run(train_loader=loader, epochs=1) as run:
        assert run.max_batch_size == expected
        run.set_batch_size(expected)
        assert run.epoch_length == 1
        with pytest.raises(ConfigError, match="expected at most 12, the number of samples that a rank reads per epoch"):
            run.set_batch_size(expected + 1)
        with pytest.raises(ConfigError, match="batch_size"):
            run.set_batch_size(0)


def test_loader_that_is_missing_or_fixed_is_refused() -> None:
    bus = HookBus()
    with bus.run(epochs=1) as run:
        with pytest.raises(ConfigError, match="Pass `train_loader` to bus.run"):
            run.set_batch_size(2)
        run.train_loader = [DATA]
        with pytest.raises(ConfigError, match="it is no DataLoader, got list"):
            assert run.max_batch_size


def test_change_while_the_loader_is_read_is_refused() -> None:
    loader: Any = DataLoader(DATA, batch_size=2)
    bus = HookBus()
    with bus.run(train_loader=loader, epochs=2) as run:
        for _ in run.epochs():
            for i, batch in run.batches(loader):
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
                with pytest.raises(LoopError, match="while the training loader is being read"):
                    run.set_batch_size(4)
            run.train_loader = loader


def test_trial_reads_batches_of_another_size() -> None:
    loader: Any = DataLoader(DATA, batch_size=2)
    bus = HookBus()
    with bus.run(train_loader=loader, epochs=1) as run:
        with run.sandbox() as trial:
            assert [len(batch[0]) for batch in trial.batches(batch_size=5)] == [5, 5, 2]
            with pytest.raises(LoopError, match="set_batch_size"):
                run.set_batch_size(4)
        assert run.train_loader is loader


def test_learning_rates_of_the_run_and_of_hooks_are_multiplied() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5)
    own = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([weight], lr=1.0), 1)

    class Scheduling(Hook):
        lr_schedulers = (own,)

    with HookBus([Scheduling()]).run(optimizer=optimizer, scheduler=scheduler) as run:
        run.scale_learning_rates(4.0)
    assert (optimizer.param_groups[0]["lr"], scheduler.base_lrs, own.base_lrs) == (1.0, [2.0], [4.0])
