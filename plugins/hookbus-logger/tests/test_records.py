"""When a record of training is made, what it covers, and that a resume changes none of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import Hook, HookBus, Metrics, Trainer, every, hookimpl
from hookbus.run import Run
from hookbus.testing import fake_training
from hookbus_logger.records import RecordingHook, epoch_of

from .toys import StopAt


class Recorder(RecordingHook):
    """Keeps its records: iteration, step, mean loss, learning rates."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.records: list[tuple[int, int, float]] = []
        self.rates: list[dict[str, float]] = []
        self.made_at_save = 0

    def write_record(self, run: Run, metrics: Metrics, step: int, rates: Mapping[str, float]) -> None:
        self.records.append((run.iters_done, step, metrics["train/loss"]))
        self.rates.append(dict(rates))

    def state_dict(self) -> dict[str, Any]:
        self.made_at_save = len(self.records)
        return super().state_dict()

    @property
    def iterations(self) -> list[int]:
        return [iteration for iteration, _, _ in self.records]


def recorded(hook: Recorder, **options: Any) -> list[int]:
    fake_training([hook], **options)
    return hook.iterations


def test_every_interval_has_a_record_of_its_mean() -> None:
    hook = Recorder(interval=2)

    fake_training([hook], epochs=1, batches=4, losses=float)

    assert hook.records == [(2, 2, 1.5), (4, 4, 3.5)]


def test_the_interval_counts_within_the_epoch_or_over_the_whole_run() -> None:
    assert recorded(Recorder(interval=3), epochs=3, batches=4) == [3, 7, 11, 12]
    assert recorded(Recorder(interval=3, by_epoch=False), epochs=3, batches=4) == [3, 6, 9, 12]


def test_what_is_left_of_an_epoch_is_dropped_and_never_reaches_the_next_record() -> None:
    hook = Recorder(interval=2)

    fake_training([hook], epochs=2, batches=3, losses=float)

    assert hook.records == [(2, 2, 1.5), (5, 5, 4.5), (6, 6, 6.0)]


def test_the_only_record_of_an_epoch_is_never_dropped() -> None:
    hook = Recorder(interval=10)

    fake_training([hook], epochs=2, batches=3, losses=lambda iteration: [3.0, 1.0, 2.0][iteration % 3])

    assert hook.records == [(3, 3, 2.0), (6, 6, 2.0)]


def test_without_ignore_last_each_epoch_ends_with_a_record() -> None:
    assert recorded(Recorder(interval=2, ignore_last=False), epochs=2, batches=3) == [2, 3, 5, 6]


def test_an_interval_that_ends_with_the_epoch_makes_one_record_only() -> None:
    assert recorded(Recorder(interval=3, ignore_last=False), epochs=2, batches=3) == [3, 6]


@pytest.mark.parametrize("by_epoch", [True, False])
def test_the_end_of_the_run_is_recorded_however_little_is_left(by_epoch: bool) -> None:
    hook = Recorder(interval=3, by_epoch=by_epoch)

    fake_training([hook], epochs=None, iterations=7, batches=10, losses=float)

    assert hook.records == [(3, 3, 2.0), (6, 6, 5.0), (7, 7, 7.0)]


def test_an_early_stop_is_an_end_of_the_run() -> None:
    hook = Recorder(interval=4)

    fake_training([hook, StopAt(6)], epochs=3, batches=10)

    assert hook.iterations == [4, 6]


def test_a_stop_that_is_agreed_on_only_after_the_epoch_loses_nothing() -> None:
    class StopAfterEpoch(Hook):
        def after_epoch(self, run: Run) -> None:
            run.request_stop("enough")

    hook = Recorder(interval=2)
    fake_training([hook, StopAfterEpoch()], epochs=5, batches=3, losses=float)

    assert hook.records == [(2, 2, 1.5), (3, 3, 3.0)]


def test_a_loader_without_length_has_the_same_records(trainer: Callable[..., Trainer], stream: Any) -> None:
    hook = Recorder(interval=2)

    trainer(hook, train_loader=stream([1.0, 2.0, 3.0]), epochs=2).fit()

    assert hook.records == [(2, 2, 1.5), (5, 5, 1.5), (6, 6, 3.0)]


def test_records_stand_on_updates_where_several_micro_batches_make_one(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=1)

    trainer(hook, losses=[1.0] * 16, accumulate=8).fit()

    assert hook.records == [(8, 1, 1.0), (16, 2, 1.0)]


def test_a_record_that_waits_over_the_end_of_an_epoch_keeps_what_it_covers(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=10)

    trainer(hook, losses=[1.0, 2.0, 3.0, 4.0, 5.0], accumulate=2, epochs=2).fit()

    assert hook.records == [(6, 3, (1 + 2 + 3 + 4 + 5 + 1) / 6), (10, 5, (2 + 3 + 4 + 5) / 4)]


@pytest.mark.parametrize(
    ("interval", "accumulate", "expected"),
    [
        (1, 2, [(2, 1, 1.5), (4, 2, 3.5)]),  # the fifth makes no update, and step 2 has its record
        (4, 2, [(4, 2, 2.5)]),
        (3, 2, [(4, 2, 2.5)]),
        (3, 1, [(3, 3, 2.0), (5, 5, 4.5)]),
        (10, 2, [(5, 2, 3.0)]),
        (10, 8, [(5, 0, 3.0)]),  # there was no update at all
    ],
)
def test_a_step_has_one_record_at_the_end_of_the_run_too(
    trainer: Callable[..., Trainer], interval: int, accumulate: int, expected: list[tuple[int, int, float]]
) -> None:
    hook = Recorder(interval=interval)

    trainer(hook, losses=[1.0, 2.0, 3.0, 4.0, 5.0], accumulate=accumulate).fit()

    assert hook.records == expected


def test_what_is_left_at_a_stop_is_recorded_unless_a_checkpoint_keeps_it(tmp_path: Path, save_at: Any) -> None:
    class Saves(save_at):  # type: ignore[misc]
        def before_run(self, run: Run) -> None:
            run.provide("saver", self)

    alone, kept = Recorder(interval=4), Recorder(interval=4)
    fake_training([alone, StopAt(6)], epochs=3, batches=10, losses=float)
    fake_training([kept, StopAt(6), Saves(tmp_path, 6)], epochs=3, batches=10, losses=float)

    assert alone.records == [(4, 4, 2.5), (6, 6, 5.5)]
    assert kept.records == [(4, 4, 2.5)]


def test_values_of_other_hooks_are_in_the_record_whatever_the_order() -> None:
    class Logs(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.log({"loss": 10.0 * run.iters_done})

    for number in (0, 100):
        hook = Recorder(interval=2, priority=number)
        fake_training([hook, Logs()], epochs=1, batches=2, losses=float)
        assert hook.records == [(2, 2, 15.0)]


def test_the_rates_are_those_that_the_last_iteration_used(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=2)

    trainer(hook, losses=[1.0] * 3, halving=True).fit()

    assert hook.iterations == [2, 3]
    assert hook.rates == [{"lr": 0.05}, {"lr": 0.025}]


def test_each_parameter_group_has_its_rate() -> None:
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


def test_a_schedule_of_the_users_decides_instead_of_the_interval() -> None:
    assert recorded(Recorder(when="every(4, unit='iter')"), epochs=3, batches=3) == [3, 4, 8, 9]


@pytest.mark.parametrize("loop", ["custom", "trainer"])
def test_the_epoch_is_that_of_the_last_iteration(trainer: Callable[..., Trainer], loop: str) -> None:
    seen: list[tuple[str, int]] = []

    class Looks(Hook):
        def before_train(self, run: Run) -> None:
            seen.append(("before_train", epoch_of(run)))

        def before_epoch(self, run: Run) -> None:
            seen.append(("before_epoch", epoch_of(run)))

        def after_train_iter(self, run: Run) -> None:
            seen.append(("after_train_iter", epoch_of(run)))

        def after_epoch(self, run: Run) -> None:
            seen.append(("after_epoch", epoch_of(run)))

    if loop == "custom":
        fake_training([Looks()], epochs=2, batches=1)
    else:
        trainer(Looks(), losses=[1.0], epochs=2).fit()

    assert seen == [
        ("before_train", 0),
        *(("before_epoch", 0), ("after_train_iter", 1), ("after_epoch", 1)),
        *(("before_epoch", 1), ("after_train_iter", 2), ("after_epoch", 2)),
    ]


# -- the same hook in several runs, and resume ---------------------------------------------------------


def test_a_second_run_that_begins_afresh_has_nothing_of_the_first() -> None:
    hook = Recorder(interval=10)
    bus = HookBus([hook])
    fake_training(bus=bus, epochs=1, batches=3, losses=float)

    fake_training(bus=bus, epochs=2, batches=3, losses=float, fresh=True)

    assert hook.records == [(3, 3, 2.0), (3, 3, 2.0), (6, 6, 5.0)]


def test_a_run_that_goes_on_has_each_record_once(trainer: Callable[..., Trainer]) -> None:
    hook = Recorder(interval=2)
    made = trainer(hook, losses=[1.0, 2.0, 3.0])
    made.fit()

    made.fit(epochs=2)

    assert hook.iterations == [2, 3, 5, 6]


class Fails(Hook):
    """Ends the run with an error after some iteration."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    @hookimpl(when=every(1))
    def before_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            raise ZeroDivisionError("the power went")


@settings(deadline=None)
@given(
    interval=st.integers(1, 6),
    by_epoch=st.booleans(),
    ignore_last=st.booleans(),
    batches=st.integers(1, 5),
    accumulate=st.integers(1, 3),
    place=st.integers(1, 15),
)
def test_a_resumed_run_makes_the_records_of_the_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory,
    trainer: Callable[..., Trainer],
    save_at: Any,
    interval: int,
    by_epoch: bool,
    ignore_last: bool,
    batches: int,
    accumulate: int,
    place: int,
) -> None:
    directory, place = tmp_path_factory.mktemp("run"), min(place, 3 * batches)
    options = {"losses": [float(2**i) for i in range(batches)], "accumulate": accumulate, "epochs": 3, "halving": True}
    whole, resumed = (Recorder(interval=interval, by_epoch=by_epoch, ignore_last=ignore_last) for _ in range(2))

    trainer(whole, save_at(directory, place), **options).fit()
    trainer(resumed, resume=directory / f"{place}.pth", **options).fit()

    assert resumed.records == whole.records[whole.made_at_save :]
    assert resumed.rates == whole.rates[whole.made_at_save :]


def test_a_failure_makes_no_record_of_what_was_not_complete(tmp_path: Path) -> None:
    hook = Recorder(interval=2)

    with pytest.raises(ZeroDivisionError):
        fake_training([hook, Fails(3)], epochs=1, batches=5)

    assert hook.iterations == [2]
