import itertools

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, state
from hookbus.errors import HookWarning
from hookbus.loop import Trainer
from hookbus.testing import RecordingBus, check_hook
from hookbus_timer import IterTimerHook

from .toys import Writer

BATCH = torch.zeros(4, 2)


class Loader:
    """Batches of 4; fetching each takes so many seconds of the fake clock."""

    def __init__(self, clock, fetches):
        self.clock, self.fetches = clock, fetches

    def __iter__(self):
        for seconds in self.fetches:
            self.clock.pass_(seconds)
            yield BATCH


class SizedLoader(Loader):
    def __len__(self):
        return len(self.fetches)


class Look(Hook):
    """Notes what the timer knows after each iteration, as the last of all listeners."""

    priority = -1

    def __init__(self, timer):
        super().__init__()
        self.timer, self.seen = timer, {}

    def after_train_iter(self, run):
        self.seen[run.iters_done] = self.timer.values(run)


def timer_on(clock, **settings):
    timer = IterTimerHook(**settings)
    timer.timer = clock
    return timer


def train(bus, run, loader, clock, *, seconds=1.0, until=None):
    """A loop of one's own, whose iterations take so many seconds besides the fetching."""
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            clock.pass_(seconds)
            bus.emit("after_train_iter", batch_idx=i, batch=batch)
            if run.iters_done == until:
                return
        bus.emit("after_train_epoch")


def records(bus, name="time/iter"):
    """(step, values) of each record that holds this name."""
    found = bus.arguments("log_scalars")
    return [(each["step"], dict(each["values"])) for each in found if name in each["values"]]


class TestRecords:
    def test_are_made_every_interval_on_the_axis_of_updates(self, clock):
        bus = RecordingBus([timer_on(clock, interval=4)])
        with bus.run(epochs=3) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        expected = {
            "time/iter": 1.5,
            "time/data": 0.5,
            "throughput/iterations_per_second": 1 / 1.5,
            "throughput/samples_per_second": 4 / 1.5,
        }
        assert records(bus) == [
            (4, {**expected, "time/eta": 12.0}),
            (8, {**expected, "time/eta": 6.0}),
            (12, {**expected, "time/eta": 0.0}),
        ]

    def test_end_with_the_iterations_that_are_left_over(self, clock):
        bus = RecordingBus([timer_on(clock, interval=4)])
        with bus.run(iterations=6) as run:
            train(bus, run, SizedLoader(clock, [1, 1, 1, 1, 1, 5]), clock, seconds=0)

        assert [(step, values["time/iter"]) for step, values in records(bus)] == [(4, 1.0), (6, 2.0)]

    def test_are_made_once_by_a_run_that_is_shorter_than_the_interval(self, clock):
        bus = RecordingBus([timer_on(clock)])
        with bus.run(epochs=1) as run:
            train(bus, run, SizedLoader(clock, [0, 0, 0]), clock)

        assert [(step, values["time/eta"]) for step, values in records(bus)] == [(3, 0.0)]

    def test_are_made_at_the_end_of_an_epoch_that_has_none(self, clock):
        bus = RecordingBus([timer_on(clock, interval=7)])
        with bus.run(epochs=4) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)

        # Due at iterations 7 and 14; epochs end at 4, 8, 12 and 16.
        assert [step for step, _ in records(bus)] == [4, 7, 12, 14, 16]

    def test_are_made_at_the_end_of_an_epoch_of_a_length_that_was_seen(self, clock):
        bus = RecordingBus([timer_on(clock)])
        with bus.run(epochs=3) as run:
            train(bus, run, Loader(clock, [0] * 4), clock)

        assert [step for step, _ in records(bus)] == [8, 12]

    def test_leave_the_time_left_out_where_it_is_not_wanted(self, clock):
        bus = RecordingBus([timer_on(clock, interval=2, log_eta=False)])
        with bus.run(epochs=1) as run:
            train(bus, run, SizedLoader(clock, [0, 0]), clock)

        assert [sorted(values) for _, values in records(bus)] == [
            ["throughput/iterations_per_second", "throughput/samples_per_second", "time/data", "time/iter"]
        ]

    def test_that_fall_due_without_an_update_wait_for_it(self, clock):
        bus = RecordingBus([timer_on(clock, interval=2)])
        with bus.run(iterations=9, counts_steps=True) as run:
            for i, batch in run.batches(SizedLoader(clock, [0] * 9)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                clock.pass_(1)
                if i % 3 == 2:
                    bus.emit("before_optimizer_step")
                    bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

        # Due at iterations 2, 4, 6 and 8; updates are made at iterations 3, 6 and 9.
        assert [(step, values["time/eta"]) for step, values in records(bus)] == [(1, 6.0), (2, 3.0), (3, 0.0)]

    def test_have_no_two_for_one_update_at_the_end_of_training(self, clock):
        bus = RecordingBus([timer_on(clock, interval=2)])
        with bus.run(iterations=4, counts_steps=True) as run:
            for i, batch in run.batches(SizedLoader(clock, [0] * 4)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                if i == 1:
                    bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

        assert [step for step, _ in records(bus)] == [1]

    def test_do_not_count_samples_that_were_skipped(self, clock):
        class SkipSecond(Hook):
            def before_train_iter(self, run):
                if run.iter == 1:
                    run.request_skip_iter("bad batch")

        bus = RecordingBus([timer_on(clock, interval=4), SkipSecond()])
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)

        assert records(bus)[0][1]["throughput/samples_per_second"] == 3 * 4 / 4

    def test_hold_no_samples_where_a_batch_cannot_be_counted(self, clock):
        bus = RecordingBus([timer_on(clock, interval=1)])
        with bus.run(iterations=1):
            bus.emit("before_train_iter", batch="text")
            clock.pass_(2)
            bus.emit("after_train_iter", batch="text")

        assert records(bus)[0][1] == {
            "time/iter": 2.0,
            "time/data": 0.0,
            "time/eta": 0.0,
            "throughput/iterations_per_second": 0.5,
        }

    @pytest.mark.parametrize("order", ["nested", "ascending"])
    @pytest.mark.parametrize("priority", [0, 50, 100])
    def test_are_the_same_wherever_the_timer_stands_among_hooks_that_take_no_time(self, clock, order, priority):
        bus = RecordingBus([timer_on(clock, interval=2, priority=priority), Hook(), Look(IterTimerHook())], order=order)
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [1, 2, 3, 4]), clock)

        assert [(step, values["time/iter"], values["time/data"]) for step, values in records(bus)] == [
            (2, 2.5, 1.5),
            (4, 4.5, 3.5),
        ]

    def test_count_what_other_hooks_do_at_an_iteration(self, clock):
        class Slow(Hook):
            def before_train_iter(self):
                clock.pass_(2)

            def after_train_iter(self):
                clock.pass_(3)

        bus = RecordingBus([Slow(), timer_on(clock, interval=4)])
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        assert (records(bus)[0][1]["time/iter"], records(bus)[0][1]["time/data"]) == (6.5, 0.5)


class TestTimeLeft:
    def test_counts_from_the_place_where_a_run_was_resumed(self, clock, tmp_path):
        path = tmp_path / "iter_80.pth"
        bus = HookBus([timer_on(clock, interval=10)])
        with bus.run(model=nn.Linear(1, 1), iterations=100) as run:
            train(bus, run, SizedLoader(clock, [0] * 100), clock, until=80)
            state.write_checkpoint(path, state.collect(run), 1)
        clock.pass_(100_000)

        bus = RecordingBus([timer_on(clock, interval=10)])
        with bus.run(model=nn.Linear(1, 1), iterations=100, resume=path) as run:
            train(bus, run, SizedLoader(clock, [0] * 100), clock)

        assert [(step, values["time/eta"]) for step, values in records(bus)] == [(90, 10.0), (100, 0.0)]

    def test_goes_by_a_window_over_the_borders_of_epochs(self, clock):
        timer = timer_on(clock, interval=10)
        bus = HookBus([timer, look := Look(timer)])
        with bus.run(epochs=3) as run:
            train(bus, run, SizedLoader(clock, [5, 1, 1, 1, 1]), clock, seconds=0)

        assert look.seen[11]["time/iter"] == 1.8
        assert look.seen[11]["time/eta"] == pytest.approx(7.2, abs=1e-12)
        assert look.seen[15]["time/eta"] == 0

    def test_needs_no_length_where_iterations_are_limited(self, clock):
        timer = timer_on(clock)
        bus = HookBus([timer, look := Look(timer)])
        with bus.run(iterations=6) as run:
            train(bus, run, Loader(clock, itertools.repeat(0)), clock)

        assert run.iters_done == 6
        assert [look.seen[i]["time/eta"] for i in range(1, 7)] == [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]

    def test_is_unknown_without_any_limit(self, clock):
        bus = RecordingBus([timer_on(clock, interval=2)])
        with bus.run() as run:
            bus.emit("before_train_epoch")
            for i, batch in run.batches(Loader(clock, [0] * 5)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                clock.pass_(1)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

        assert [(step, "time/eta" in values) for step, values in records(bus)] == [(2, False), (4, False), (5, False)]

    def test_is_unknown_until_the_length_of_an_epoch_was_seen(self, clock):
        timer = timer_on(clock)
        bus = HookBus([timer, look := Look(timer)])
        with bus.run(epochs=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)

        assert [look.seen[i].get("time/eta") for i in range(1, 7)] == [None, None, None, 2.0, 1.0, 0.0]

    def test_knows_the_length_of_an_epoch_after_a_resume(self, clock, tmp_path):
        path = tmp_path / "iter_4.pth"
        bus = HookBus([timer_on(clock)])
        with bus.run(epochs=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock, until=4)
            state.write_checkpoint(path, state.collect(run), 1)

        timer = timer_on(clock)
        bus = HookBus([timer, look := Look(timer)])
        with bus.run(epochs=2, resume=path) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)

        assert {i: values["time/eta"] for i, values in look.seen.items()} == {5: 1.0, 6: 0.0}

    def test_learns_nothing_from_an_epoch_that_was_cut(self, clock):
        timer = timer_on(clock)
        bus = HookBus([timer, look := Look(timer)])
        with bus.run(iterations=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)
        with bus.run(epochs=2) as run:
            train(bus, run, Loader(clock, [0] * 3), clock)

        assert "time/eta" not in look.seen[3]
        assert look.seen[4]["time/eta"] == 2.0

    def test_is_what_a_loop_leaves_undone_that_breaks_off_after_an_epoch(self, clock):
        bus = RecordingBus([timer_on(clock)])
        with bus.run(epochs=3) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for i, batch in run.batches(SizedLoader(clock, [0] * 5)):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    clock.pass_(1)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")
                break

        assert [(step, values["time/eta"]) for step, values in records(bus)] == [(5, 10.0)]

    def test_is_nothing_once_the_run_has_agreed_to_stop(self, clock):
        class StopAtThree(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 3:
                    run.request_stop("enough")

        bus = RecordingBus([timer_on(clock), StopAtThree()])
        with bus.run(iterations=100) as run:
            train(bus, run, SizedLoader(clock, [0] * 100), clock)

        assert [(step, values["time/eta"]) for step, values in records(bus)] == [(3, 0.0)]


class TestWhatDoesNotCount:
    @pytest.mark.parametrize("batches", [5, 10])
    def test_a_validation_is_recorded_apart(self, clock, batches):
        """At the end of an epoch, and in the middle of one."""

        class ValidateAtFive(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 5:
                    run.request_validation()

        bus = RecordingBus([timer_on(clock, interval=10), ValidateAtFive()])
        with bus.run(iterations=10, validate=lambda: clock.pass_(20)) as run:
            train(bus, run, SizedLoader(clock, [0] * batches), clock)

        assert records(bus, "time/val") == [(5, {"time/val": 20.0})]
        step, values = records(bus)[-1]
        assert (step, values["time/iter"], values["time/data"]) == (10, 1.0, 0.0)
        assert values["throughput/samples_per_second"] == 4.0

    def test_a_validation_every_few_iterations_leaves_every_record_alone(self, clock):
        class ValidateOften(Hook):
            def after_train_iter(self, run):
                if run.iters_done % 3 == 0:
                    run.request_validation()

        bus = RecordingBus([ValidateOften(), timer_on(clock, interval=2)])
        with bus.run(iterations=12, validate=lambda: clock.pass_(20)) as run:
            train(bus, run, SizedLoader(clock, [0.25] * 12), clock, seconds=0.75)

        assert [values["time/iter"] for _, values in records(bus)] == [1.0] * 6
        assert [values["time/data"] for _, values in records(bus)] == [0.25] * 6
        assert [step for step, _ in records(bus, "time/val")] == [3, 6, 9, 12]

    def test_a_validation_that_a_hook_makes_inside_an_iteration(self, clock):
        class ValidateNow(Hook):
            def after_train_iter(self, run):
                run.validate()

        bus = RecordingBus([timer_on(clock, interval=2), ValidateNow()])
        with bus.run(iterations=2, validate=lambda: clock.pass_(20)) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 2), clock)

        assert (records(bus)[0][1]["time/iter"], records(bus)[0][1]["time/data"]) == (1.5, 0.5)

    def test_a_validation_that_a_loop_makes_by_itself(self, clock):
        bus = RecordingBus([timer_on(clock, interval=2)])
        with bus.run(iterations=2):
            for _ in range(2):
                clock.pass_(0.5)
                bus.emit("before_train_iter", batch=BATCH)
                clock.pass_(1)
                bus.emit("after_train_iter", batch=BATCH)
                bus.emit("before_val")
                clock.pass_(20)
                bus.emit("after_val")

        # The first event of this loop comes after its first fetch.
        assert (records(bus)[0][1]["time/iter"], records(bus)[0][1]["time/data"]) == (1.25, 0.25)
        assert [values for _, values in records(bus, "time/val")] == [{"time/val": 20.0}] * 2

    def test_a_test_inside_training_is_recorded_apart(self, clock):
        bus = RecordingBus([timer_on(clock, interval=2)])
        with bus.run(iterations=2):
            for _ in range(2):
                bus.emit("before_train_iter", batch=BATCH)
                clock.pass_(1)
                bus.emit("after_train_iter", batch=BATCH)
                bus.emit("before_test")
                clock.pass_(20)
                bus.emit("after_test")

        assert records(bus)[0][1]["time/iter"] == 1.0
        assert [values for _, values in records(bus, "time/test")] == [{"time/test": 20.0}] * 2

    def test_a_checkpoint(self, clock):
        class Save(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 2:
                    run.request_save(saver=self)

            def plan(self, run, requests):
                return "made up"

            def write(self, run, checkpoint):
                clock.pass_(30)
                return False

        bus = RecordingBus([timer_on(clock, interval=4), Save()])
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 4), clock)

        assert (records(bus)[0][1]["time/iter"], records(bus)[0][1]["time/data"]) == (1.5, 0.5)

    def test_what_is_done_between_two_epochs(self, clock):
        class Draw(Hook):
            def after_train_epoch(self):
                clock.pass_(50)

            def after_epoch(self):
                clock.pass_(70)

        bus = RecordingBus([timer_on(clock, interval=6), Draw()])
        with bus.run(epochs=2) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 3), clock)

        assert (records(bus)[0][1]["time/iter"], records(bus)[0][1]["time/data"]) == (1.5, 0.5)

    def test_the_validation_before_training_which_is_not_recorded_either(self, clock):
        class ValidateFirst(Hook):
            def before_train(self, run):
                run.request_validation()

        bus = RecordingBus([timer_on(clock, interval=2), ValidateFirst()])
        with bus.run(iterations=2, validate=lambda: clock.pass_(20)) as run:
            train(bus, run, SizedLoader(clock, [0] * 2), clock)

        assert records(bus)[0][1]["time/iter"] == 1.0
        assert records(bus, "time/val") == []


class TestDataTime:
    def test_does_not_hold_the_time_in_which_a_logger_waits_for_the_device(self, clock):
        class Log(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 5:
                    run.request_record(run.metrics.window("log"), lambda metrics, step: clock.pass_(3))

        bus = RecordingBus([Log(), timer_on(clock, interval=10)])
        with bus.run(iterations=10) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 10), clock)

        assert (records(bus)[0][1]["time/iter"], records(bus)[0][1]["time/data"]) == (1.8, 0.5)

    def test_is_left_out_where_a_logger_waits_after_every_iteration(self, clock):
        class Log(Hook):
            def after_train_iter(self, run):
                run.request_record(run.metrics.window("log"), lambda metrics, step: clock.pass_(3))

        bus = RecordingBus([Log(), timer_on(clock, interval=2)])
        with bus.run(iterations=6) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 6), clock)

        assert ["time/data" in values for _, values in records(bus)] == [True, False, False]

    def test_does_not_hold_the_time_that_writers_take_for_the_timers_own_records(self, clock):
        class SlowWriter(Hook):
            def log_scalars(self):
                clock.pass_(3)

        bus = RecordingBus([SlowWriter(), timer_on(clock, interval=1)])
        with bus.run(iterations=3) as run:
            train(bus, run, SizedLoader(clock, [0.5] * 3), clock)

        assert [(values["time/iter"], values["time/data"]) for _, values in records(bus)] == [
            (1.5, 0.5),
            (4.5, 0.5),
            (4.5, 0.5),
        ]


class TestRuns:
    def test_a_second_one_on_the_same_bus_goes_on_without_the_time_in_between(self, clock):
        bus = RecordingBus([timer_on(clock, interval=2)])
        for limit in (2, 4):
            with bus.run(iterations=limit) as run:
                train(bus, run, SizedLoader(clock, [0] * 4), clock)
            clock.pass_(1000)

        assert [(step, values["time/iter"]) for step, values in records(bus)] == [(2, 1.0), (4, 1.0)]

    def test_one_without_any_iteration_has_no_record(self, clock):
        bus = RecordingBus([timer_on(clock)])
        with bus.run(epochs=1):
            bus.emit("before_train")

        assert bus.arguments("log_scalars") == []

    def test_each_of_several_fresh_ones_has_its_last_record(self, clock):
        bus = RecordingBus([timer_on(clock)])
        for _ in range(2):
            with bus.run(iterations=3, fresh=True) as run:
                train(bus, run, SizedLoader(clock, [0] * 3), clock)

        assert [step for step, _ in records(bus)] == [3, 3]

    def test_a_fresh_one_on_the_same_bus_begins_anew(self, clock):
        timer = timer_on(clock)
        bus = HookBus([timer, look := Look(timer)])
        with bus.run(epochs=1) as run:
            train(bus, run, Loader(clock, [0] * 3), clock, seconds=5)
        with bus.run(epochs=2, fresh=True) as run:
            train(bus, run, Loader(clock, [0] * 2), clock)

        assert "time/eta" not in look.seen[1]
        assert look.seen[3] == {
            "time/iter": 1.0,
            "time/data": 0.0,
            "time/eta": 1.0,
            "throughput/iterations_per_second": 1.0,
            "throughput/samples_per_second": 4.0,
        }

    def test_one_that_is_resumed_in_the_middle_of_an_epoch_counts_down_to_its_end(self, clock, tmp_path):
        path = tmp_path / "iter_7.pth"
        bus = HookBus([timer_on(clock)])
        with bus.run(epochs=3) as run:
            train(bus, run, SizedLoader(clock, [0] * 5), clock, until=7)
            state.write_checkpoint(path, state.collect(run), 1)

        timer = timer_on(clock)
        bus = HookBus([timer, look := Look(timer)])
        with bus.run(epochs=3, resume=path) as run:
            train(bus, run, SizedLoader(clock, [0] * 5), clock, seconds=2)

        assert [(i, values["time/eta"]) for i, values in look.seen.items()][:2] == [(8, 14.0), (9, 12.0)]

    def test_one_that_only_validates_has_the_time_of_the_validation_and_nothing_else(self, clock):
        trainer = Trainer(
            nn.Linear(2, 2),
            step_fn=lambda model, batch: model(batch).sum(),
            val_loader=Loader(clock, [2, 3]),
            work_dir=None,
            default_hooks=False,
            hooks=[timer_on(clock), writer := Writer()],
        )

        trainer.validate()

        assert writer.written == [(0, {"time/val": 5.0})]

    def test_the_trainers_with_accumulation_and_a_validation_per_epoch(self, clock):
        def step(model, batch):
            clock.pass_(1 if model.training else 10)
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
            hooks=[timer_on(clock, interval=5), writer := Writer()],
        )

        trainer.fit()

        assert [(step, values.get("time/val"), values.get("time/eta")) for step, values in writer.written] == [
            (2, None, 12.0),  # the end of the first epoch, which has no record yet
            (2, 20.0, None),
            (3, None, 9.0),  # due at iteration 5, written with the update of iteration 6
            (4, 20.0, None),
            (5, None, 3.0),
            (6, 20.0, None),
            (6, None, 0.0),
        ]

    def test_one_that_fails_in_a_validation_is_forgotten_by_the_next(self, clock):
        class ValidateFirst(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 1:
                    run.request_validation()

        timer = timer_on(clock)
        bus = HookBus([timer, ValidateFirst(), look := Look(timer)])
        with pytest.raises(ZeroDivisionError), bus.run(iterations=4, validate=lambda: 1 / 0) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)
        clock.pass_(1000)
        with bus.run(iterations=4) as run:
            train(bus, run, SizedLoader(clock, [0] * 4), clock)

        assert look.seen[2]["time/iter"] == 1.0


class TestConformance:
    @pytest.mark.parametrize("settings", [{}, {"interval": 1}, {"log_eta": False}])
    def test_keeps_the_promises_of_hooks(self, settings):
        check_hook(IterTimerHook, **settings)

    def test_is_found_under_its_short_name(self):
        assert IterTimerHook().name == "iter_timer"

    def test_only_warns_when_it_fails(self, clock):
        def broken():
            raise OSError("no clock")

        timer = IterTimerHook()
        timer.timer = broken
        bus = HookBus([timer])
        with pytest.warns(HookWarning, match="iter_timer"), bus.run(iterations=2) as run:
            train(bus, run, SizedLoader(clock, [0] * 2), clock)

        assert run.outcome == "finished"
