import itertools
from contextlib import suppress
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hookbus import Hook, HookBus
from hookbus.checkpoint import state
from hookbus.errors import HookbusError, HookWarning
from hookbus.testing import RecordingBus, check_hook
from hookbus.trainer.trainer import Trainer
from hookbus_checkpoint import CheckpointHook
from hookbus_timer import IterTimerHook
from hookbus_timer.iter_timer import WindowedTimer, compute_means

from .toys import ScalarRecorder

BATCH = torch.zeros(4, 2)


class Loader:
    """Loader of batches of 4; fetching batch i takes `fetches[i]` seconds of the clock."""

    def __init__(self, clock, fetches):
        self.clock, self.fetches = clock, fetches

    def __iter__(self):
        for seconds in self.fetches:
            self.clock.advance(seconds)
            yield BATCH


class SizedLoader(Loader):
    def __len__(self):
        return len(self.fetches)


class ValueRecorder(Hook):
    """Store the values of the timer after each iteration."""

    priority = -1  # the last listener of `after_train_iter`

    def __init__(self, timer):
        super().__init__()
        self.timer, self.values = timer, {}

    def after_train_iter(self, run):
        self.values[run.iters_done] = self.timer.get_values(run)


def make_timer(clock, **settings):
    timer = IterTimerHook(**settings)
    timer.timer = clock
    return timer


def train(bus, run, loader, clock, *, seconds=1.0, until=None):
    """Run a custom loop whose iterations take `seconds` in addition to fetching."""
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            clock.advance(seconds)
            bus.emit("after_train_iter", batch_idx=i, batch=batch)
            if run.iters_done == until:
                return
        bus.emit("after_train_epoch")


def get_records(bus, name="time/iter"):
    """Return the (step, values) of each record that contains a name."""
    events = bus.get_arguments("log_scalars")
    return [(event["step"], dict(event["values"])) for event in events if name in event["values"]]


class TestRecords:
    def test_values_are_logged_every_interval_by_optimizer_step(self, clock):
        bus = RecordingBus([make_timer(clock, interval=4)])
        with bus.run(epochs=3) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        expected = {
            "time/iter": 1.5,
            "time/data": 0.5,
            "throughput/iterations_per_second": 1 / 1.5,
            "throughput/samples_per_second": 4 / 1.5,
        }
        assert get_records(bus) == [
            (4, {**expected, "time/eta": 12.0}),
            (8, {**expected, "time/eta": 6.0}),
            (12, {**expected, "time/eta": 0.0}),
        ]

    def test_remaining_iterations_are_logged_at_the_end(self, clock):
        bus = RecordingBus([make_timer(clock, interval=4)])
        with bus.run(iterations=6) as run:
            train(bus, run, SizedLoader(clock, [1, 1, 1, 1, 1, 5]), clock, seconds=0)

        assert [(step, values["time/iter"]) for step, values in get_records(bus)] == [(4, 1.0), (6, 3.0)]

    @pytest.mark.parametrize("loader", [SizedLoader, Loader], ids=["known length", "unknown length"])
    def test_incomplete_last_interval_is_logged_before_the_end_of_the_epoch(self, clock, loader):
        class EpochEnd(Hook):
            priority = 0

            def after_epoch(self, run):
                run.bus.emit("log_scalars", values={"time/iter": -1.0})

        bus = RecordingBus([make_timer(clock, interval=4), EpochEnd()])
        with bus.run(epochs=1) as run:
            train(bus, run, loader(clock, [1, 1, 1, 1, 2, 4]), clock, seconds=0)

        values = [values for _, values in get_records(bus)]
        assert [value["time/iter"] for value in values] == [1.0, 3.0, -1.0]
        assert values[1].get("time/eta") == 0.0

    def test_means_after_a_delayed_log_exclude_the_iterations_of_that_log(self, clock):
        def train_accumulated(bus, run):
            for i, seconds in enumerate([1, 1, 4, 1, 1, 1, 1]):
                bus.emit("before_train_iter", batch=BATCH)
                clock.advance(seconds)
                if i in (2, 3, 5):
                    run.optimizer.step()
                bus.emit("after_train_iter", batch=BATCH)

        model = nn.Linear(1, 1)
        bus = RecordingBus([make_timer(clock, interval=2)])
        with bus.run(optimizer=torch.optim.SGD(model.parameters(), lr=0.1), iterations=7) as run:
            train_accumulated(bus, run)

        # Due at 2 and logged at 3; due at 4; due at 6.
        assert [(step, values["time/iter"]) for step, values in get_records(bus)][:3] == [(1, 2.5), (2, 1.0), (3, 1.0)]

    def test_run_shorter_than_the_interval_is_logged_once(self, clock):
        bus = RecordingBus([make_timer(clock)])
        with bus.run(epochs=1) as run:
            train(bus, run, SizedLoader(clock, [0, 0, 0]), clock)

        assert [(step, values["time/eta"]) for step, values in get_records(bus)] == [(3, 0.0)]

    def test_epoch_without_a_log_is_logged_at_its_end(self, clock):
        bus = RecordingBus([make_timer(clock, interval=7)])
        with bus.run(epochs=4) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)

        # Due at iterations 7 and 14; epochs end at 4, 8, 12 and 16.
        assert [step for step, _ in get_records(bus)] == [4, 7, 12, 14, 16]

    def test_epoch_of_measured_length_is_logged_at_its_end(self, clock):
        bus = RecordingBus([make_timer(clock)])
        with bus.run(epochs=3) as run:
            train(bus, run, Loader(clock, [0] * 4), clock)

        assert [step for step, _ in get_records(bus)] == [8, 12]

    def test_remaining_time_is_omitted_without_log_eta(self, clock):
        bus = RecordingBus([make_timer(clock, interval=2, log_eta=False)])
        with bus.run(epochs=1) as run:
            train(bus, run, SizedLoader(clock, [0, 0]), clock)

        assert [sorted(values) for _, values in get_records(bus)] == [
            ["throughput/iterations_per_second", "throughput/samples_per_second", "time/data", "time/iter"]
        ]

    def test_values_due_without_an_optimizer_step_are_logged_with_the_next(self, clock):
        bus = RecordingBus([make_timer(clock, interval=2)])
        with bus.run(iterations=9, counts_steps=True) as run:
            for i, batch in run.batches(SizedLoader(clock, [0] * 9)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                clock.advance(1)
                if i % 3 == 2:
                    bus.emit("before_optimizer_step")
                    bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

        # Due at iterations 2, 4, 6 and 8; optimizer steps at iterations 3, 6 and 9.
        assert [(step, values["time/eta"]) for step, values in get_records(bus)] == [(1, 6.0), (2, 3.0), (3, 0.0)]

    def test_values_are_logged_once_per_step_at_the_end_of_training(self, clock):
        bus = RecordingBus([make_timer(clock, interval=2)])
        with bus.run(iterations=4, counts_steps=True) as run:
            for i, batch in run.batches(SizedLoader(clock, [0] * 4)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                if i == 1:
                    bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

        assert [step for step, _ in get_records(bus)] == [1]

    def test_skipped_samples_are_not_counted(self, clock):
        class SkipSecond(Hook):
            def before_train_iter(self, run):
                if run.iter == 1:
                    run.request_skip_iter("bad batch")

        bus = RecordingBus([make_timer(clock, interval=4), SkipSecond()])
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)

        assert get_records(bus)[0][1]["throughput/samples_per_second"] == 3 * 4 / 4

    def test_samples_are_omitted_if_a_batch_cannot_be_counted(self, clock):
        bus = RecordingBus([make_timer(clock, interval=1)])
        with bus.run(iterations=1):
            bus.emit("before_train_iter", batch="text")
            clock.advance(2)
            bus.emit("after_train_iter", batch="text")

        assert get_records(bus)[0][1] == {
            "time/iter": 2.0,
            "time/data": 0.0,
            "time/eta": 0.0,
            "throughput/iterations_per_second": 0.5,
        }

    @pytest.mark.parametrize("order", ["nested", "ascending"])
    @pytest.mark.parametrize("priority", [0, 50, 100])
    def test_values_do_not_depend_on_the_priority_among_idle_hooks(self, clock, order, priority):
        bus = RecordingBus(
            [make_timer(clock, interval=2, priority=priority), Hook(), ValueRecorder(IterTimerHook())], order=order
        )
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [1, 2, 3, 4]), clock)

        assert [(step, values["time/iter"], values["time/data"]) for step, values in get_records(bus)] == [
            (2, 2.5, 1.5),
            (4, 4.5, 3.5),
        ]

    def test_work_of_other_hooks_in_an_iteration_is_included(self, clock):
        class Slow(Hook):
            def before_train_iter(self):
                clock.advance(2)

            def after_train_iter(self):
                clock.advance(3)

        bus = RecordingBus([Slow(), make_timer(clock, interval=4)])
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        assert (get_records(bus)[0][1]["time/iter"], get_records(bus)[0][1]["time/data"]) == (6.5, 0.5)


class TestRemainingTime:
    def test_remaining_time_counts_from_the_resumed_iteration(self, clock, tmp_path):
        path = tmp_path / "iter_80.pth"
        bus = HookBus([make_timer(clock, interval=10)])
        with bus.run(model=nn.Linear(1, 1), iterations=100) as run:
            train(bus, run, SizedLoader(clock, [0] * 100), clock, until=80)
            state.write_checkpoint(path, state.build_checkpoint(run), 1)
        clock.advance(100_000)

        bus = RecordingBus([make_timer(clock, interval=10)])
        with bus.run(model=nn.Linear(1, 1), iterations=100, resume=path) as run:
            train(bus, run, SizedLoader(clock, [0] * 100), clock)

        assert [(step, values["time/eta"]) for step, values in get_records(bus)] == [(90, 10.0), (100, 0.0)]

    def test_window_continues_across_epochs(self, clock):
        timer = make_timer(clock, interval=10)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(epochs=3) as run:
            train(bus, run, SizedLoader(clock, [5, 1, 1, 1, 1]), clock, seconds=0)

        assert recorder.values[11]["time/iter"] == 1.8
        assert recorder.values[11]["time/eta"] == pytest.approx(7.2, abs=1e-12)
        assert recorder.values[15]["time/eta"] == 0

    def test_limit_in_iterations_requires_no_epoch_length(self, clock):
        timer = make_timer(clock)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(iterations=6) as run:
            train(bus, run, Loader(clock, itertools.repeat(0)), clock)

        assert run.iters_done == 6
        assert [recorder.values[i]["time/eta"] for i in range(1, 7)] == [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]

    def test_remaining_time_is_unknown_without_a_limit(self, clock):
        bus = RecordingBus([make_timer(clock, interval=2)])
        with bus.run() as run:
            bus.emit("before_train_epoch")
            for i, batch in run.batches(Loader(clock, [0] * 5)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                clock.advance(1)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

        assert [(step, "time/eta" in values) for step, values in get_records(bus)] == [
            (2, False),
            (4, False),
            (5, False),
        ]

    def test_remaining_time_is_unknown_until_the_epoch_length_is_measured(self, clock):
        timer = make_timer(clock)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(epochs=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)

        assert [recorder.values[i].get("time/eta") for i in range(1, 7)] == [None, None, None, 2.0, 1.0, 0.0]

    def test_epoch_length_is_restored_after_a_resume(self, clock, tmp_path):
        path = tmp_path / "iter_4.pth"
        bus = HookBus([make_timer(clock)])
        with bus.run(epochs=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock, until=4)
            state.write_checkpoint(path, state.build_checkpoint(run), 1)

        timer = make_timer(clock)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(epochs=2, resume=path) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)

        assert {i: values["time/eta"] for i, values in recorder.values.items()} == {5: 1.0, 6: 0.0}

    def test_remaining_time_uses_the_length_of_the_last_epoch_if_that_of_the_loader_is_wrong(self, clock):
        class WrongLength(Loader):
            def __len__(self):
                return 9

        timer = make_timer(clock)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(epochs=2) as run:
            train(bus, run, WrongLength(clock, [0] * 3), clock)

        assert [recorder.values[i]["time/eta"] for i in range(1, 7)] == [17.0, 16.0, 15.0, 2.0, 1.0, 0.0]

    def test_truncated_epoch_does_not_set_the_epoch_length(self, clock):
        timer = make_timer(clock)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(iterations=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)
        with bus.run(epochs=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)

        assert "time/eta" not in recorder.values[3]
        assert recorder.values[4]["time/eta"] == 2.0

    def test_remaining_time_of_a_loop_that_breaks_is_that_to_its_limit(self, clock):
        bus = RecordingBus([make_timer(clock)])
        with bus.run(epochs=3) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for i, batch in run.batches(SizedLoader(clock, [0] * 5)):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    clock.advance(1)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")
                break

        assert [(step, values["time/eta"]) for step, values in get_records(bus)] == [(5, 10.0)]

    def test_remaining_time_is_zero_after_a_stop_request(self, clock):
        class StopAtThree(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 3:
                    run.request_stop("enough")

        bus = RecordingBus([make_timer(clock), StopAtThree()])
        with bus.run(iterations=100) as run:
            train(bus, run, SizedLoader(clock, [0] * 100), clock)

        assert [(step, values["time/eta"]) for step, values in get_records(bus)] == [(3, 0.0)]


class TestExcludedTime:
    @pytest.mark.parametrize("batches", [5, 10])
    def test_validation_is_excluded_and_logged_separately(self, clock, batches):
        """The validation is at the end of an epoch and in the middle of one."""

        class ValidateAtFive(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 5:
                    run.request_validation()

        bus = RecordingBus([make_timer(clock, interval=10), ValidateAtFive()])
        with bus.run(iterations=10, validate=lambda: clock.advance(20)) as run:
            train(bus, run, SizedLoader(clock, [0] * batches), clock)

        assert get_records(bus, "time/val") == [(5, {"time/val": 20.0})]
        step, values = get_records(bus)[-1]
        assert (step, values["time/iter"], values["time/data"]) == (10, 1.0, 0.0)
        assert values["throughput/samples_per_second"] == 4.0

    def test_frequent_validations_do_not_change_the_values(self, clock):
        class ValidateOften(Hook):
            def after_train_iter(self, run):
                if run.iters_done % 3 == 0:
                    run.request_validation()

        bus = RecordingBus([ValidateOften(), make_timer(clock, interval=2)])
        with bus.run(iterations=12, validate=lambda: clock.advance(20)) as run:
            train(bus, run, SizedLoader(clock, [0.25] * 12), clock, seconds=0.75)

        assert [values["time/iter"] for _, values in get_records(bus)] == [1.0] * 6
        assert [values["time/data"] for _, values in get_records(bus)] == [0.25] * 6
        assert [step for step, _ in get_records(bus, "time/val")] == [3, 6, 9, 12]

    def test_validation_inside_an_iteration_is_excluded(self, clock):
        class ValidateNow(Hook):
            def after_train_iter(self, run):
                run.validate()

        bus = RecordingBus([make_timer(clock, interval=2), ValidateNow()])
        with bus.run(iterations=2, validate=lambda: clock.advance(20)) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 2), clock)

        assert (get_records(bus)[0][1]["time/iter"], get_records(bus)[0][1]["time/data"]) == (1.5, 0.5)

    def test_validation_of_a_custom_loop_is_excluded(self, clock):
        bus = RecordingBus([make_timer(clock, interval=2)])
        with bus.run(iterations=2):
            for _ in range(2):
                clock.advance(0.5)
                bus.emit("before_train_iter", batch=BATCH)
                clock.advance(1)
                bus.emit("after_train_iter", batch=BATCH)
                bus.emit("before_val")
                clock.advance(20)
                bus.emit("after_val")

        # The first event of this loop is emitted after its first fetch.
        assert (get_records(bus)[0][1]["time/iter"], get_records(bus)[0][1]["time/data"]) == (1.25, 0.25)
        assert [values for _, values in get_records(bus, "time/val")] == [{"time/val": 20.0}] * 2

    def test_test_inside_training_is_excluded_and_logged_separately(self, clock):
        bus = RecordingBus([make_timer(clock, interval=2)])
        with bus.run(iterations=2):
            for _ in range(2):
                bus.emit("before_train_iter", batch=BATCH)
                clock.advance(1)
                bus.emit("after_train_iter", batch=BATCH)
                bus.emit("before_test")
                clock.advance(20)
                bus.emit("after_test")

        assert get_records(bus)[0][1]["time/iter"] == 1.0
        assert [values for _, values in get_records(bus, "time/test")] == [{"time/test": 20.0}] * 2

    def test_duration_of_a_prediction_is_logged(self, clock):
        bus = RecordingBus([make_timer(clock)])
        with bus.run(mode="predict"):
            bus.emit("before_predict")
            clock.advance(20)
            bus.emit("after_predict")

        assert [values for _, values in get_records(bus, "time/predict")] == [{"time/predict": 20.0}]

    def test_checkpoint_is_excluded(self, clock):
        class Save(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 2:
                    run.request_save(saver=self)

            def plan(self, run, requests):
                return "checkpoint"

            def write(self, run, checkpoint):
                clock.advance(30)
                return False

        bus = RecordingBus([make_timer(clock, interval=4), Save()])
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        assert (get_records(bus)[0][1]["time/iter"], get_records(bus)[0][1]["time/data"]) == (1.5, 0.5)

    def test_work_between_two_epochs_is_excluded(self, clock):
        class WorkAtEpochEnd(Hook):
            def after_train_epoch(self):
                clock.advance(50)

            def after_epoch(self):
                clock.advance(70)

        bus = RecordingBus([make_timer(clock, interval=6), WorkAtEpochEnd()])
        with bus.run(epochs=2) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 3), clock)

        assert (get_records(bus)[0][1]["time/iter"], get_records(bus)[0][1]["time/data"]) == (1.5, 0.5)

    def test_sanity_check_validation_is_excluded_and_not_logged(self, clock):
        class ValidateFirst(Hook):
            def before_train(self, run):
                run.request_validation()

        bus = RecordingBus([make_timer(clock, interval=2), ValidateFirst()])
        with bus.run(iterations=2, validate=lambda: clock.advance(20)) as run:
            train(bus, run, SizedLoader(clock, [0] * 2), clock)

        assert get_records(bus)[0][1]["time/iter"] == 1.0
        assert get_records(bus, "time/val") == []


class TestDataTime:
    def test_data_time_excludes_the_device_synchronization_of_a_logger(self, clock):
        class Log(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 5:
                    run.request_record(run.metrics.window("log"), lambda metrics, step: clock.advance(3))

        bus = RecordingBus([Log(), make_timer(clock, interval=10)])
        with bus.run(iterations=10) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 10), clock)

        assert (get_records(bus)[0][1]["time/iter"], get_records(bus)[0][1]["time/data"]) == (1.8, 0.5)

    def test_data_time_is_omitted_if_a_logger_synchronizes_every_iteration(self, clock):
        class Log(Hook):
            def after_train_iter(self, run):
                run.request_record(run.metrics.window("log"), lambda metrics, step: clock.advance(3))

        bus = RecordingBus([Log(), make_timer(clock, interval=2)])
        with bus.run(iterations=6) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 6), clock)

        assert ["time/data" in values for _, values in get_records(bus)] == [True, False, False]

    def test_data_time_excludes_writers_of_the_values_of_the_timer(self, clock):
        class SlowWriter(Hook):
            def log_scalars(self):
                clock.advance(3)

        bus = RecordingBus([SlowWriter(), make_timer(clock, interval=1)])
        with bus.run(iterations=3) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 3), clock)

        assert [(values["time/iter"], values["time/data"]) for _, values in get_records(bus)] == [
            (1.5, 0.5),
            (4.5, 0.5),
            (4.5, 0.5),
        ]


class TestRuns:
    def test_second_run_on_the_same_bus_excludes_the_time_in_between(self, clock):
        bus = RecordingBus([make_timer(clock, interval=2)])
        for limit in (2, 4):
            with bus.run(iterations=limit) as run:
                train(bus, run, SizedLoader(clock, [0] * 4), clock)
            clock.advance(1000)

        assert [(step, values["time/iter"]) for step, values in get_records(bus)] == [(2, 1.0), (4, 1.0)]

    def test_run_without_iterations_logs_nothing(self, clock):
        bus = RecordingBus([make_timer(clock)])
        with bus.run(epochs=1):
            bus.emit("before_train")

        assert bus.get_arguments("log_scalars") == []

    def test_fresh_runs_log_their_last_iterations(self, clock):
        bus = RecordingBus([make_timer(clock)])
        for _ in range(2):
            with bus.run(iterations=3, fresh=True) as run:
                train(bus, run, SizedLoader(clock, [0] * 3), clock)

        assert [step for step, _ in get_records(bus)] == [3, 3]

    def test_fresh_run_on_the_same_bus_resets_the_timer(self, clock):
        timer = make_timer(clock)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(epochs=1) as run:
            train(bus, run, Loader(clock, [0] * 3), clock, seconds=5)
        with bus.run(epochs=2, fresh=True) as run:
            train(bus, run, Loader(clock, [0] * 2), clock)

        assert "time/eta" not in recorder.values[1]
        assert recorder.values[3] == {
            "time/iter": 1.0,
            "time/data": 0.0,
            "time/eta": 1.0,
            "throughput/iterations_per_second": 1.0,
            "throughput/samples_per_second": 4.0,
        }

    def test_run_resumed_inside_an_epoch_counts_down_to_the_limit(self, clock, tmp_path):
        path = tmp_path / "iter_7.pth"
        bus = HookBus([make_timer(clock)])
        with bus.run(epochs=3) as run:
            train(bus, run, SizedLoader(clock, [0] * 5), clock, until=7)
            state.write_checkpoint(path, state.build_checkpoint(run), 1)

        timer = make_timer(clock)
        bus = HookBus([timer, recorder := ValueRecorder(timer)])
        with bus.run(epochs=3, resume=path) as run:
            train(bus, run, SizedLoader(clock, [0] * 5), clock, seconds=2)

        assert [(i, values["time/eta"]) for i, values in recorder.values.items()][:2] == [(8, 14.0), (9, 12.0)]

    def test_validation_run_logs_only_the_validation_time(self, clock):
        trainer = Trainer(
            nn.Linear(2, 2),
            step_fn=lambda model, batch: model(batch).sum(),
            val_loader=Loader(clock, [2, 3]),
            work_dir=None,
            default_hooks=False,
            hooks=[make_timer(clock), recorder := ScalarRecorder()],
        )

        trainer.validate()

        assert recorder.records == [(0, {"time/val": 5.0})]

    def test_trainer_run_with_accumulation_and_validation_logs_all_values(self, clock):
        def step(model, batch):
            clock.advance(1 if model.training else 10)
            return model(batch).sum()

        model = nn.Linear(2, 2)
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            step_fn=step,
            train_loader=SizedLoader(clock, [0.5] * 4),
            val_loader=SizedLoader(clock, [0, 0]),
            epochs=3,
            accumulate=2,
            validate_first=True,
            work_dir=None,
            default_hooks=False,
            hooks=[make_timer(clock, interval=5), recorder := ScalarRecorder()],
        )

        trainer.fit()

        assert [(step, values.get("time/val"), values.get("time/eta")) for step, values in recorder.records] == [
            (2, None, 12.0),  # end of the first epoch, in which nothing was logged yet
            (2, 20.0, None),
            (3, None, 9.0),  # due at iteration 5, logged with the step of iteration 6
            (4, 20.0, None),
            (5, None, 3.0),
            (6, None, 0.0),  # end of the run
            (6, 20.0, None),
        ]

    def test_run_after_a_failed_validation_starts_from_scratch(self, clock):
        class ValidateFirst(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 1:
                    run.request_validation()

        timer = make_timer(clock)
        bus = HookBus([timer, ValidateFirst(), recorder := ValueRecorder(timer)])
        with pytest.raises(ZeroDivisionError), bus.run(iterations=4, validate=lambda: 1 / 0) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)
        clock.advance(1000)
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)

        assert recorder.values[2]["time/iter"] == 1.0


class TestConformance:
    @pytest.mark.slow
    @pytest.mark.parametrize("settings", [{}, {"interval": 1}, {"log_eta": False}])
    def test_hook_passes_the_conformance_checks(self, settings):
        check_hook(IterTimerHook, **settings)

    def test_hook_has_its_short_name(self):
        assert IterTimerHook().name == "iter_timer"

    def test_failure_of_the_timer_only_warns(self, clock):
        def broken():
            raise OSError("no clock")

        timer = IterTimerHook()
        timer.timer = broken
        bus = HookBus([timer])
        with pytest.warns(HookWarning, match="iter_timer"), bus.run(iterations=2) as run:
            train(bus, run, SizedLoader(clock, [0] * 2), clock)

        assert run.outcome == "finished"


@pytest.mark.parametrize("order", [1, -1])
def test_two_timers_log_the_values_that_each_logs_alone(clock, order):
    def record(*intervals):
        timers = [make_timer(clock, name=f"timer_{interval}", interval=interval) for interval in intervals]
        bus = RecordingBus(timers)
        with bus.run(epochs=2) as run:
            train(bus, run, SizedLoader(clock, [1, 2, 3, 4, 5, 6]), clock)
        return get_records(bus)

    def sort(records):
        return sorted((step, sorted(values.items())) for step, values in records)

    assert sort(record(*[2, 3][::order])) == sort([*record(2), *record(3)])


durations = st.integers(0, 1000)
iterations = st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=40)


def time_iterations(timer, iterations, now=0, samples=4):
    """Time iterations of (seconds of the pause before, of fetching, of computing), and return the end."""
    timer.start(now)
    for pause, fetch, compute in iterations:
        timer.pause(now)
        now += pause
        timer.resume(now)
        now += fetch
        timer.end_fetch(now)
        now += compute
        timer.end_iteration(now, fetches_next=True)
    return now


class TestLaps:
    def test_iteration_is_timed_from_the_end_of_the_previous_one(self):
        timer = WindowedTimer(10)

        time_iterations(timer, [(0, 2, 3), (0, 4, 5)])

        assert (timer.means["time/iter"], timer.means["time/data"]) == (7.0, 3.0)

    @given(iterations, st.integers(1, 50))
    def test_means_are_over_the_window_without_the_pauses(self, iterations, size):
        timer, last = WindowedTimer(size), iterations[-size:]

        time_iterations(timer, iterations)

        assert timer.means["time/iter"] == sum(fetch + compute for _, fetch, compute in last) / len(last)
        assert timer.means["time/data"] == sum(fetch for _, fetch, _ in last) / len(last)

    @given(iterations)
    def test_data_time_is_included_in_the_iteration_time(self, iterations):
        timer = WindowedTimer(100)

        time_iterations(timer, iterations)

        assert 0 <= timer.means["time/data"] <= timer.means["time/iter"]

    @given(iterations, iterations)
    def test_cleared_timer_equals_a_new_one(self, before, after):
        used, new = WindowedTimer(10), WindowedTimer(10)
        now = time_iterations(used, before)

        used.clear()
        time_iterations(used, after, now)
        time_iterations(new, after)

        assert used.means == new.means

    def test_timer_is_true_after_the_first_iteration(self):
        timer = WindowedTimer(10)
        assert not timer

        time_iterations(timer, [(0, 1, 1)])

        assert timer

    def test_pause_inside_an_iteration_is_excluded(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.pause(2)

        assert timer.resume(22) == 20
        timer.end_iteration(23, fetches_next=True)
        assert (timer.means["time/iter"], timer.means["time/data"]) == (3.0, 1.0)

    def test_unfinished_pause_ends_with_the_iteration(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.pause(2)
        timer.end_iteration(5, fetches_next=True)

        timer.resume(7)
        timer.end_fetch(8)
        timer.end_iteration(9, fetches_next=True)

        assert timer.means["time/iter"] == (5 + 2) / 2

    def test_work_before_fetching_is_iteration_time_but_not_data_time(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.end_iteration(2, fetches_next=False)
        timer.end_fetch(8)
        timer.end_iteration(9, fetches_next=True)

        assert (timer.means["time/iter"], timer.means["time/data"]) == (4.5, 1.0)

    def test_fetching_can_start_later(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(0)
        timer.end_iteration(1, fetches_next=False)
        timer.start_fetch(5)
        timer.end_fetch(7)
        timer.end_iteration(8, fetches_next=True)

        assert (timer.means["time/iter"], timer.means["time/data"]) == (4.0, 1.0)

    def test_iteration_without_an_end_of_fetching_has_no_data_time(self):
        timer = WindowedTimer(1)
        timer.start(0)
        timer.end_fetch(3)
        timer.end_iteration(4, fetches_next=True)
        assert timer.means["time/data"] == 3.0

        timer.end_iteration(5, fetches_next=True)

        assert "time/data" not in timer.means


seconds = st.floats(min_value=0, max_value=1e6, allow_subnormal=False)
laps = st.lists(st.tuples(seconds, st.none() | seconds), min_size=1, max_size=60)


class TestMeansOf:
    def test_means_of_no_iterations_are_unknown(self):
        assert compute_means([]) == {}

    def test_data_time_is_the_mean_of_the_known_data_times(self):
        assert compute_means([(1.0, None), (1.0, 0.25), (1.0, 0.75)])["time/data"] == 0.5
        assert compute_means([(2.0, None)]) == {"time/iter": 2.0}

    def test_known_values_have_full_metric_names(self):
        assert compute_means([(1.0, 0.5), (3.0, 1.5)]) == {"time/iter": 2.0, "time/data": 1.0}

    @given(laps)
    def test_means_are_exact_up_to_two_roundings(self, laps):
        exact = float(sum((Fraction(lap[0]) for lap in laps), Fraction())) / len(laps)

        assert compute_means(laps)["time/iter"] == exact

    @given(laps, st.randoms())
    def test_means_do_not_depend_on_the_order_of_the_iterations(self, laps, random):
        shuffled = random.sample(laps, len(laps))

        assert compute_means(shuffled) == compute_means(laps)


class TestTokens:
    def test_tokens_per_second_and_their_total_are_logged(self, clock):
        bus = RecordingBus([make_timer(clock, interval=4)])
        with bus.run(epochs=2, batch_tokens=lambda batch: 3 * len(batch)) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        # 12 tokens in 1.5 seconds.
        values = [(v["throughput/tokens_per_second"], v["progress/tokens"]) for _, v in get_records(bus)]
        assert values == [(8.0, 48), (8.0, 96)]

    def test_remaining_time_refers_to_the_limit_in_tokens(self, clock):
        bus = RecordingBus([make_timer(clock, interval=4)])
        with bus.run(tokens=140, batch_tokens=lambda batch: 3 * len(batch)) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        # 140 tokens are 11.67 iterations, of which each takes 1.5 seconds.
        assert [(step, v["time/eta"]) for step, v in get_records(bus)] == [(4, 12.0), (8, 6.0), (12, 0.0)]


class TestFlops:
    def train(self, clock, **settings):
        bus = RecordingBus([make_timer(clock, interval=4, **settings)])
        with bus.run(epochs=1) as run:
            train(bus, run, SizedLoader(clock, [1.0] * 4), clock)
        return get_records(bus)[0][1]

    def test_model_flops_are_compared_with_the_peak(self, clock):
        values = self.train(clock, flops_per_batch=6e12, peak_flops=12e12)
        assert values["throughput/flops_per_second"] == 3e12  # 6e12 in 2 seconds
        assert values["throughput/mfu"] == 0.25

    def test_unknown_peak_has_no_utilization(self, clock):
        values = self.train(clock, flops_per_batch=6e12)
        assert "throughput/flops_per_second" in values
        assert "throughput/mfu" not in values

    def fit(self, clock, work_dir, iterations, **options):
        """Train a linear layer with 2 inputs and 3 outputs in batches of 4, whose iterations take a second each."""
        model = nn.Linear(2, 3)
        timer = make_timer(clock, interval=1, flops_per_batch="measure", peak_flops=288)
        bus = RecordingBus([timer, CheckpointHook(interval=1, by_epoch=False)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=model, optimizer=optimizer, iterations=iterations, work_dir=work_dir, **options) as run:
            bus.emit("before_train_epoch")
            for index, batch in run.batches([BATCH] * 9):
                bus.emit("before_train_iter", batch_idx=index, batch=batch)
                clock.advance(1.0)
                model(batch).sum().backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=index, batch=batch)
        return [values for _, values in get_records(bus)]

    def test_operations_of_the_second_iteration_are_measured(self, clock, tmp_path):
        records = self.fit(clock, tmp_path, 3)
        rates = [values.get("throughput/flops_per_second") for values in records]
        # Forward 2 * 4 * 2 * 3, and as much for the gradient of the weight: the input requires none.
        assert rates == [None, 96.0, 96.0]
        assert [values.get("throughput/mfu") for values in records] == [None, 1 / 3, 1 / 3]
        assert records[1]["time/iter"] == 1.0

    def test_resumed_run_has_the_number_of_its_checkpoint(self, clock, tmp_path):
        self.fit(clock, tmp_path, 3)
        records = self.fit(clock, tmp_path, 5, resume="auto")
        assert [values["throughput/flops_per_second"] for values in records] == [96.0, 96.0]

    def test_iteration_that_executes_no_model_is_reported_once(self, clock, caplog):
        values = self.train(clock, flops_per_batch="measure")
        assert "throughput/flops_per_second" not in values
        (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert message.startswith("iter_timer: an iteration executed no operation that is counted")

    def test_counting_ends_with_a_failed_iteration(self, clock):
        bus = RecordingBus([make_timer(clock, flops_per_batch="measure")])
        modes = []
        with suppress(ZeroDivisionError), bus.run(epochs=1) as run:
            for index, batch in run.batches([BATCH] * 3):
                bus.emit("before_train_iter", batch_idx=index, batch=batch)
                modes.append(_get_current_dispatch_mode())
                if index == 1:
                    raise ZeroDivisionError
                bus.emit("after_train_iter", batch_idx=index, batch=batch)
        assert [mode is None for mode in modes] == [True, False]
        assert _get_current_dispatch_mode() is None

    @pytest.mark.parametrize("setting", [{"peak_flops": 1e12}, {"precision": "bf16"}])
    def test_setting_without_the_operations_of_a_batch_is_refused(self, setting):
        with pytest.raises(HookbusError, match="no effect without `flops_per_batch`"):
            IterTimerHook(**setting)
