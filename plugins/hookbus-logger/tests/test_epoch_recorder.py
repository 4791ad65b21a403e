"""Tests of the times and contents of training records, also after a resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import Hook, HookBus, Metrics, Trainer, every, hookimpl
from hookbus._run.run import Run
from hookbus.testing import fake_training
from hookbus_logger.epoch_recorder import EpochRecorder, get_epoch

from .toys import StopAt


class Recorder(EpochRecorder):
    """Store records: iteration, step, mean loss and learning rates."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.records: list[tuple[int, int, float]] = []
        self.rates: list[dict[str, float]] = []
        self.count_at_save = 0

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        self.records.append((run.iters_done, step, metrics["train/loss"]))
        self.rates.append(dict(run.learning_rates()))

    def state_dict(self) -> dict[str, Any]:
        self.count_at_save = len(self.records)
        return super().state_dict()

    @property
    def iterations(self) -> list[int]:
        return [iteration for iteration, _, _ in self.records]


def record_iterations(hook: Recorder, **options: Any) -> list[int]:
    fake_training([hook], **options)
    return hook.iterations


def test_each_interval_has_a_record_of_its_mean() -> None:
    hook = Recorder(interval=2)

    fake_training([hook], epochs=1, batches=4, losses=float)

    assert hook.records == [(2, 2, 1.5), (4, 4, 3.5)]


def test_interval_counts_within_each_epoch_or_over_the_run() -> None:
    assert record_iterations(Recorder(interval=3), epochs=3, batches=4) == [3, 7, 11, 12]
    assert record_iterations(Recorder(interval=3, by_epoch=False), epochs=3, batches=4) == [3, 6, 9, 12]


def test_incomplete_interval_of_an_epoch_is_not_part_of_the_next_record() -> None:
    hook = Recorder(interval=2)

    fake_training([hook], epochs=2, batches=3, losses=float)

    assert hook.records == [(2, 2, 1.5), (5, 5, 4.5), (6, 6, 6.0)]


def test_only_record_of_an_epoch_is_not_dropped() -> None:
    hook = Recorder(interval=10)

    fake_training([hook], epochs=2, batches=3, losses=lambda iteration: [3.0, 1.0, 2.0][iteration % 3])

    assert hook.records == [(3, 3, 2.0), (6, 6, 2.0)]


def test_each_epoch_ends_with_a_record_without_ignore_last() -> None:
    assert record_iterations(Recorder(interval=2, ignore_last=False), epochs=2, batches=3) == [2, 3, 5, 6]


def test_interval_that_ends_with_the_epoch_has_one_record() -> None:
    assert record_iterations(Recorder(interval=3, ignore_last=False), epochs=2, batches=3) == [3, 6]


@pytest.mark.parametrize("by_epoch", [True, False])
def test_incomplete_interval_at_the_end_of_the_run_is_recorded(by_epoch: bool) -> None:
    hook = Recorder(interval=3, by_epoch=by_epoch)

    fake_training([hook], epochs=None, iterations=7, batches=10, losses=float)

    assert hook.records == [(3, 3, 2.0), (6, 6, 5.0), (7, 7, 7.0)]


def test_incomplete_interval_at_an_early_stop_is_recorded() -> None:
    hook = Recorder(interval=4)

    fake_training([hook, StopAt(6)], epochs=3, batches=10)

    assert hook.iterations == [4, 6]


def test_incomplete_interval_is_recorded_if_the_stop_follows_the_epoch() -> None:
    class StopAfterEpoch(Hook):
        def after_epoch(self, run: Run) -> None:
            run.request_stop("enough")

    hook = Recorder(interval=2)
    fake_training([hook, StopAfterEpoch()], epochs=5, batches=3, losses=float)

    assert hook.records == [(2, 2, 1.5), (3, 3, 3.0)]


def test_loader_without_length_has_the_same_records(trainer: Callable[..., Trainer], unsized_loader: Any) -> None:
    hook = Recorder(interval=2)

    trainer(hook, train_loader=unsized_loader([1.0, 2.0, 3.0]), epochs=2).fit()

    assert hook.records == [(2, 2, 1.5), (5, 5, 1.5), (6, 6, 3.0)]


def test_records_are_aligned_to_optimizer_steps_with_accumulation(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=1)

    trainer(hook, losses=[1.0] * 16, accumulate=8).fit()

    assert hook.records == [(8, 1, 1.0), (16, 2, 1.0)]


def test_record_pending_over_the_end_of_an_epoch_contains_its_iterations(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=10)

    trainer(hook, losses=[1.0, 2.0, 3.0, 4.0, 5.0], accumulate=2, epochs=2).fit()

    assert hook.records == [(6, 3, (1 + 2 + 3 + 4 + 5 + 1) / 6), (10, 5, (2 + 3 + 4 + 5) / 4)]


@pytest.mark.parametrize(
    ("interval", "accumulate", "expected"),
    [
        (1, 2, [(2, 1, 1.5), (4, 2, 3.5)]),  # iteration 5 is no optimizer step, and step 2 has a record
        (4, 2, [(4, 2, 2.5)]),
        (3, 2, [(4, 2, 2.5)]),
        (3, 1, [(3, 3, 2.0), (5, 5, 4.5)]),
        (10, 2, [(5, 2, 3.0)]),
        (10, 8, [(5, 0, 3.0)]),  # no optimizer step at all
    ],
)
def test_each_step_has_one_record_at_the_end_of_the_run_too(
    trainer: Callable[..., Trainer], interval: int, accumulate: int, expected: list[tuple[int, int, float]]
) -> None:
    hook = Recorder(interval=interval)

    trainer(hook, losses=[1.0, 2.0, 3.0, 4.0, 5.0], accumulate=accumulate).fit()

    assert hook.records == expected


def test_incomplete_interval_is_not_recorded_if_a_checkpoint_stores_it(tmp_path: Path, save_at: Any) -> None:
    class SaveAsService(save_at):  # type: ignore[misc]
        def before_run(self, run: Run) -> None:
            run.provide("checkpoint_saver", self)

    not_stored, stored = Recorder(interval=4), Recorder(interval=4)
    fake_training([not_stored, StopAt(6)], epochs=3, batches=10, losses=float)
    fake_training([stored, StopAt(6), SaveAsService(tmp_path, 6)], epochs=3, batches=10, losses=float)

    assert not_stored.records == [(4, 4, 2.5), (6, 6, 5.5)]
    assert stored.records == [(4, 4, 2.5)]


def test_record_contains_values_of_other_hooks_in_any_order() -> None:
    class LogLoss(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.log({"loss": 10.0 * run.iters_done})

    for priority in (0, 100):
        hook = Recorder(interval=2, priority=priority)
        fake_training([hook, LogLoss()], epochs=1, batches=2, losses=float)
        assert hook.records == [(2, 2, 15.0)]


def test_record_has_the_learning_rates_of_the_last_iteration(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=2)

    trainer(hook, losses=[1.0] * 3, halving=True).fit()

    assert hook.iterations == [2, 3]
    assert hook.rates == [{"lr": 0.05}, {"lr": 0.025}]


def test_each_parameter_group_has_its_learning_rate() -> None:
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    groups = [{"params": first.parameters(), "lr": 0.5}, {"params": second.parameters(), "lr": 0.25}]
    hook, bus = Recorder(interval=1), HookBus()
    bus.register(hook)

    with bus.run(model=first, optimizer=torch.optim.SGD(groups), epochs=1) as run:
        for _ in run.epochs():
            for i, batch in run.batches([torch.zeros(1)]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                run.optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})

    assert hook.rates == [{"lr/0": 0.5, "lr/1": 0.25}]


def test_custom_schedule_replaces_the_interval() -> None:
    assert record_iterations(Recorder(when="every(4, unit='iter')"), epochs=3, batches=3) == [3, 4, 8, 9]


@pytest.mark.parametrize("loop", ["custom", "trainer"])
def test_epoch_is_that_of_the_last_iteration(trainer: Callable[..., Trainer], loop: str) -> None:
    entries: list[tuple[str, int]] = []

    class RecordEpochs(Hook):
        def before_train(self, run: Run) -> None:
            entries.append(("before_train", get_epoch(run)))

        def before_epoch(self, run: Run) -> None:
            entries.append(("before_epoch", get_epoch(run)))

        def after_train_iter(self, run: Run) -> None:
            entries.append(("after_train_iter", get_epoch(run)))

        def after_epoch(self, run: Run) -> None:
            entries.append(("after_epoch", get_epoch(run)))

    if loop == "custom":
        fake_training([RecordEpochs()], epochs=2, batches=1)
    else:
        trainer(RecordEpochs(), losses=[1.0], epochs=2).fit()

    assert entries == [
        ("before_train", 0),
        *(("before_epoch", 0), ("after_train_iter", 1), ("after_epoch", 1)),
        *(("before_epoch", 1), ("after_train_iter", 2), ("after_epoch", 2)),
    ]


# -- several runs, and resume --------------------------------------------------------------------------


def test_fresh_run_contains_no_values_of_the_previous_run() -> None:
    hook = Recorder(interval=10)
    bus = HookBus([hook])
    fake_training(bus=bus, epochs=1, batches=3, losses=float)

    fake_training(bus=bus, epochs=2, batches=3, losses=float, fresh=True)

    assert hook.records == [(3, 3, 2.0), (3, 3, 2.0), (6, 6, 5.0)]


def test_continued_run_has_each_record_once(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=2)
    trained = trainer(hook, losses=[1.0, 2.0, 3.0])
    trained.fit()

    trained.fit(epochs=2)

    assert hook.iterations == [2, 3, 5, 6]


class Fail(Hook):
    """Raise an error after the given iteration."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    @hookimpl(when=every(1))
    def before_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            raise ZeroDivisionError("simulated crash")


@pytest.mark.slow
@settings(deadline=None)
@given(
    interval=st.integers(1, 6),
    by_epoch=st.booleans(),
    ignore_last=st.booleans(),
    batches=st.integers(1, 5),
    accumulate=st.integers(1, 3),
    save_at_iteration=st.integers(1, 15),
)
def test_resumed_run_has_the_records_of_the_uninterrupted_run(
    tmp_path_factory: pytest.TempPathFactory,
    trainer: Callable[..., Trainer],
    save_at: Any,
    interval: int,
    by_epoch: bool,
    ignore_last: bool,
    batches: int,
    accumulate: int,
    save_at_iteration: int,
) -> None:
    directory, iteration = tmp_path_factory.mktemp("run"), min(save_at_iteration, 3 * batches)
    options = {"losses": [float(2**i) for i in range(batches)], "accumulate": accumulate, "epochs": 3, "halving": True}
    uninterrupted, resumed = (Recorder(interval=interval, by_epoch=by_epoch, ignore_last=ignore_last) for _ in range(2))

    trainer(uninterrupted, save_at(directory, iteration), **options).fit()
    trainer(resumed, resume=directory / f"{iteration}.pth", **options).fit()

    assert resumed.records == uninterrupted.records[uninterrupted.count_at_save :]
    assert resumed.rates == uninterrupted.rates[uninterrupted.count_at_save :]


def test_failed_run_does_not_record_an_incomplete_interval(tmp_path: Path) -> None:
    hook = Recorder(interval=2)

    with pytest.raises(ZeroDivisionError):
        fake_training([hook, Fail(3)], epochs=1, batches=5)

    assert hook.iterations == [2]
