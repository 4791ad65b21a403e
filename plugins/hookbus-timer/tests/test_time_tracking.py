import logging
import time

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, state
from hookbus.errors import HookWarning
from hookbus.loop import Trainer
from hookbus.testing import RecordingBus, check_hook
from hookbus_timer import TimeTrackingHook

from .toys import Writer

BATCHES = [torch.zeros(4, 2)] * 5


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """Local time is UTC, so that finish times can be written down."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def lines(caplog):
    """What was logged, as a function, so that it is read late."""
    caplog.set_level(logging.INFO, logger="hookbus")
    return lambda: [record.getMessage() for record in caplog.records if "epoch " in record.getMessage()]


def tracker_on(clock, **settings):
    tracker = TimeTrackingHook(**settings)
    tracker.timer = tracker.wall_clock = clock
    return tracker


def train(bus, run, clock, *, seconds=2.0, loader=BATCHES, until=None):
    """A loop of one's own: epochs of 5 iterations of so many seconds (of a function of the epoch's number)."""
    for epoch in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            clock.pass_(seconds(epoch + 1) if callable(seconds) else seconds)
            bus.emit("after_train_iter", batch_idx=i, batch=batch)
            if run.iters_done == until:
                return
        bus.emit("after_train_epoch")


def values(bus):
    """(step, epoch, mean, remaining hours) of each record."""
    names = ("time/epoch", "time/epoch_mean", "time/remaining_hours")
    found = bus.arguments("log_scalars")
    return [(each["step"], *(each["values"].get(name) for name in names)) for each in found]


class TestReports:
    def test_tell_epoch_mean_remaining_and_finish(self, clock, lines):
        bus = RecordingBus([tracker_on(clock)])
        with bus.run(epochs=3) as run:
            train(bus, run, clock, seconds=lambda epoch: 720 * epoch)

        assert values(bus) == [(5, 3600, 3600, 2.0), (10, 7200, 5400, 1.5), (15, 10800, 7200, 0.0)]
        assert lines() == [
            "epoch 1/3: 1:00:00, mean 1:00:00, remaining 2:00:00, finish 1970-01-01 03:16:40",
            "epoch 2/3: 2:00:00, mean 1:30:00, remaining 1:30:00, finish 1970-01-01 04:46:40",
            "epoch 3/3: 3:00:00, mean 2:00:00, remaining 0.0 s, finish 1970-01-01 06:16:40",
        ]

    def test_count_iterations_where_these_are_limited(self, clock):
        bus = RecordingBus([tracker_on(clock)])
        with bus.run(iterations=12) as run:
            train(bus, run, clock, seconds=72)

        assert values(bus) == [(5, 360, 360, 7 * 72 / 3600), (10, 360, 360, 2 * 72 / 3600)]

    def test_leave_out_what_is_unknown_without_a_limit(self, clock, lines):
        bus = RecordingBus([tracker_on(clock)])
        with bus.run() as run:
            for _ in range(2):
                bus.emit("before_train_epoch")
                for i, batch in run.batches(BATCHES):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    clock.pass_(2)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")

        assert values(bus) == [(5, 10, 10, None), (10, 10, 10, None)]
        assert lines()[1] == "epoch 2: 10.0 s, mean 10.0 s, remaining unknown, finish unknown"

    def test_come_every_frequency_epochs_about_all_of_them(self, clock):
        bus = RecordingBus([tracker_on(clock, frequency=2)])
        with bus.run(epochs=5) as run:
            train(bus, run, clock, seconds=lambda epoch: epoch)

        # Epochs take 5, 10, 15, 20 and 25 seconds.
        assert values(bus) == [(10, 7.5, 7.5, 3 * 7.5 / 3600), (20, 17.5, 12.5, 12.5 / 3600)]

    def test_hold_validations_and_what_hooks_do_at_the_end_of_an_epoch(self, clock):
        class Busy(Hook):
            def after_train_epoch(self, run):
                run.request_validation()

            def after_epoch(self):
                clock.pass_(100)

        bus = RecordingBus([tracker_on(clock), Busy()])
        with bus.run(epochs=2, validate=lambda: clock.pass_(20)) as run:
            train(bus, run, clock)

        assert values(bus) == [(5, 130, 130, 130 / 3600), (10, 130, 130, 0.0)]

    def test_do_not_hold_the_validation_before_training(self, clock):
        class ValidateFirst(Hook):
            def before_train(self, run):
                run.request_validation()

        bus = RecordingBus([tracker_on(clock), ValidateFirst()])
        with bus.run(epochs=1, validate=lambda: clock.pass_(500)) as run:
            train(bus, run, clock)

        assert values(bus) == [(5, 10, 10, 0.0)]

    def test_leave_out_an_epoch_that_was_cut(self, clock):
        class StopInTheSecond(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 7:
                    run.request_stop("enough")

        bus = RecordingBus([tracker_on(clock), StopInTheSecond()])
        with bus.run(epochs=4) as run:
            train(bus, run, clock)

        assert run.outcome == "stopped"
        assert values(bus) == [(5, 10, 10, 3 * 10 / 3600)]

    def test_count_an_epoch_that_a_hook_has_ended_early(self, clock):
        class EndEpochs(Hook):
            def after_train_iter(self, run):
                if run.iters_done % 2 == 0:
                    run.request_stop_epoch("short")

        bus = RecordingBus([tracker_on(clock), EndEpochs()])
        with bus.run(epochs=2) as run:
            train(bus, run, clock)

        assert values(bus) == [(2, 4, 4, 4 / 3600), (4, 4, 4, 0.0)]

    def test_stand_on_updates_with_accumulation(self, clock):
        def step(model, batch):
            clock.pass_(2 if model.training else 10)
            return model(batch).sum()

        model = nn.Linear(2, 2)
        bus_hooks = [tracker_on(clock), writer := Writer()]
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            step_fn=step,
            train_loader=BATCHES,
            val_loader=BATCHES[:1],
            epochs=2,
            accumulate=2,
            validate_first=True,
            work_dir=None,
            default_hooks=False,
            hooks=bus_hooks,
        )

        trainer.fit()

        assert writer.written == [
            (2, {"time/epoch": 20.0, "time/epoch_mean": 20.0, "time/remaining_hours": 20 / 3600}),
            (5, {"time/epoch": 20.0, "time/epoch_mean": 20.0, "time/remaining_hours": 0.0}),
        ]


class TestResume:
    def resumed(self, clock, tmp_path, at, hooks=(), **options):
        """Train with 2 s per iteration up to an iteration, be down for a day, go on with 4 s per iteration."""
        path, model = tmp_path / "saved.pth", nn.Linear(1, 1)
        bus = HookBus(hooks or [tracker_on(clock)])
        with bus.run(model=model, epochs=4) as run:
            train(bus, run, clock, until=at)
            state.write_checkpoint(path, state.collect(run), 1)
        clock.pass_(86_400)
        bus = RecordingBus([tracker_on(clock, **options)])
        with bus.run(model=model, epochs=4, resume=path) as run:
            train(bus, run, clock, seconds=4)
        return values(bus)

    def test_at_the_border_of_an_epoch_goes_on_with_the_mean(self, clock, tmp_path):
        class EndAtTen(Hook):
            def after_epoch(self, run):
                if run.epochs_done == 2:
                    run.request_save(saver=self)
                    run.request_stop("down")

            def plan(self, run, requests):
                return tmp_path / "border.pth"

            def write(self, run, checkpoint):
                state.write_checkpoint(tmp_path / "border.pth", checkpoint, 1)

        model = nn.Linear(1, 1)
        bus = HookBus([tracker_on(clock), EndAtTen()])
        with bus.run(model=model, epochs=4) as run:
            train(bus, run, clock)
        clock.pass_(86_400)
        bus = RecordingBus([tracker_on(clock)])
        with bus.run(model=model, epochs=4, resume=tmp_path / "border.pth") as run:
            train(bus, run, clock, seconds=4)

        # Epochs take 10, 10, 20 and 20 seconds.
        assert values(bus) == [(15, 20, 40 / 3, 40 / 3 / 3600), (20, 20, 15, 0.0)]

    def test_inside_an_epoch_adds_both_parts_of_it(self, clock, tmp_path):
        # Epoch 2: 2 iterations of 2 s, then 3 of 4 s.
        assert self.resumed(clock, tmp_path, at=7)[0] == (10, 16, 13, 2 * 13 / 3600)

    def test_with_a_frequency_adds_up_what_was_not_reported_yet(self, clock, tmp_path):
        hooks = [tracker_on(clock, frequency=2)]

        # Epochs take 10, 16, 20 and 20 seconds.
        assert self.resumed(clock, tmp_path, at=7, hooks=hooks, frequency=2) == [
            (10, 13, 13, 2 * 13 / 3600),
            (20, 20, 16.5, 0.0),
        ]

    def test_without_a_state_leaves_out_the_epoch_that_had_begun(self, clock, tmp_path):
        assert self.resumed(clock, tmp_path, at=7, hooks=[Hook()]) == [(15, 20, 20, 20 / 3600), (20, 20, 20, 0.0)]


class TestRuns:
    def test_a_second_one_on_the_same_bus_goes_on_without_the_time_in_between(self, clock):
        bus = RecordingBus([tracker_on(clock)])
        for epochs in (1, 2):
            with bus.run(epochs=epochs) as run:
                train(bus, run, clock)
            clock.pass_(1000)

        assert values(bus) == [(5, 10, 10, 0.0), (10, 10, 10, 0.0)]

    def test_one_that_completes_an_epoch_which_was_cut_adds_both_parts_of_it(self, clock):
        bus = RecordingBus([tracker_on(clock)])
        with bus.run(iterations=7) as run:
            train(bus, run, clock)
        clock.pass_(1000)
        with bus.run(epochs=2) as run:
            train(bus, run, clock, seconds=4)

        assert values(bus) == [(5, 10, 10, 4 / 3600), (10, 16, 13, 0.0)]

    def test_a_fresh_one_on_the_same_bus_begins_anew(self, clock):
        bus = RecordingBus([tracker_on(clock)])
        for seconds in (2, 6):
            with bus.run(epochs=1, fresh=True) as run:
                train(bus, run, clock, seconds=seconds)

        assert values(bus) == [(5, 10, 10, 0.0), (5, 30, 30, 0.0)]

    def test_one_that_failed_goes_on_without_the_time_in_between(self, clock):
        class FailOnce(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 3 and clock.now < 2000:
                    raise ZeroDivisionError

        bus = RecordingBus([tracker_on(clock), FailOnce()])
        with pytest.raises(ZeroDivisionError), bus.run(epochs=1) as run:
            train(bus, run, clock)
        clock.pass_(1000)
        with bus.run(epochs=1) as run:
            train(bus, run, clock)

        assert values(bus) == [(5, 10, 10, 0.0)]

    def test_one_that_only_validates_reports_nothing(self, clock, lines, tmp_path):
        trainer = Trainer(
            nn.Linear(2, 2),
            step_fn=lambda model, batch: model(batch).sum(),
            val_loader=BATCHES,
            work_dir=tmp_path / "run",
            default_hooks=False,
            hooks=[tracker_on(clock, log_to_file=True), writer := Writer()],
        )

        trainer.validate()

        assert (writer.written, lines()) == ([], [])
        assert not (tmp_path / "run" / "logs").exists()


class TestFile:
    def test_holds_each_line_with_the_time_it_was_written(self, clock, tmp_path):
        bus = HookBus([tracker_on(clock, log_to_file=True)])
        with bus.run(epochs=2, work_dir=tmp_path / "run") as run:
            train(bus, run, clock, seconds=20)

        assert (tmp_path / "run" / "logs" / "time_tracking.log").read_text() == (
            "1970-01-01 00:18:20 epoch 1/2: 0:01:40, mean 0:01:40, remaining 0:01:40, finish 1970-01-01 00:20:00\n"
            "1970-01-01 00:20:00 epoch 2/2: 0:01:40, mean 0:01:40, remaining 0.0 s, finish 1970-01-01 00:20:00\n"
        )

    def test_is_not_there_unless_wanted(self, clock, tmp_path):
        bus = HookBus([tracker_on(clock)])
        with bus.run(epochs=1, work_dir=tmp_path / "run") as run:
            train(bus, run, clock)

        assert not (tmp_path / "run" / "logs").exists()

    @pytest.mark.parametrize("work_dir", ["run", None])
    def test_may_be_anywhere(self, clock, tmp_path, work_dir):
        path = tmp_path / "elsewhere" / "times.log"
        bus = HookBus([tracker_on(clock, log_to_file=True, log_path=str(path))])
        with bus.run(epochs=1, work_dir=work_dir and tmp_path / work_dir) as run:
            train(bus, run, clock)

        assert len(path.read_text().splitlines()) == 1

    def test_without_a_place_is_a_warning_that_says_what_to_do_and_the_rest_goes_on(self, clock):
        bus = RecordingBus([tracker_on(clock, log_to_file=True)])
        message = r"log_to_file is on, .* no place for time_tracking\.log\. Give work_dir to the run, or an absolute"
        with pytest.warns(HookWarning, match=message) as warned, bus.run(epochs=2) as run:
            train(bus, run, clock)

        assert len(warned) == 1
        assert values(bus) == [(5, 10, 10, 10 / 3600), (10, 10, 10, 0.0)]

    def test_that_cannot_be_written_is_a_warning_and_the_rest_goes_on(self, clock, lines, tmp_path):
        in_the_way = tmp_path / "file"
        in_the_way.write_text("not a directory")
        bus = RecordingBus([tracker_on(clock, log_to_file=True, log_path=str(in_the_way / "times.log"))])
        with (
            pytest.warns(HookWarning, match=r"times\.log \(.*File exists: .*\); it is only in the log\. Make room"),
            bus.run(epochs=2) as run,
        ):
            train(bus, run, clock)

        assert run.outcome == "finished"
        assert values(bus) == [(5, 10, 10, 10 / 3600), (10, 10, 10, 0.0)]
        assert len(lines()) == 2
        assert in_the_way.read_text() == "not a directory"


class TestConformance:
    @pytest.mark.parametrize("settings", [{}, {"frequency": 2}, {"log_to_file": True}])
    def test_keeps_the_promises_of_hooks(self, settings):
        check_hook(TimeTrackingHook, **settings)

    def test_is_found_under_its_short_name(self):
        assert TimeTrackingHook().name == "time_tracking"
