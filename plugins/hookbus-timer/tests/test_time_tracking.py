import logging
import os
import re
import resource
import time
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookbus import Hook, HookBus
from hookbus.checkpoint import state
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import RecordingBus, check_hook
from hookbus.trainer.trainer import Trainer
from hookbus_timer import TimeTrackingHook
from hookbus_timer.time_tracking import append_line, format_duration

from .toys import ScalarRecorder

BATCHES = [torch.zeros(4, 2)] * 5


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """Set local time to UTC, so that finish times are constants."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def lines(caplog):
    """Return a function that returns the logged lines."""
    caplog.set_level(logging.INFO, logger="hookbus")
    return lambda: [record.getMessage() for record in caplog.records if "epoch " in record.getMessage()]


def make_tracker(clock, **settings):
    tracker = TimeTrackingHook(**settings)
    tracker.timer = tracker.wall_clock = clock
    return tracker


def train(bus, run, clock, *, seconds=2.0, loader=BATCHES, until=None):
    """Run a custom loop; an iteration takes `seconds`, or `seconds(epoch)` with epochs counted from 1."""
    for epoch in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            clock.advance(seconds(epoch + 1) if callable(seconds) else seconds)
            bus.emit("after_train_iter", batch_idx=i, batch=batch)
            if run.iters_done == until:
                return
        bus.emit("after_train_epoch")


def get_values(bus):
    """Return (step, epoch, mean, remaining hours) of each record."""
    names = ("time/epoch", "time/epoch_mean", "time/remaining_hours")
    events = bus.get_arguments("log_scalars")
    return [(event["step"], *(event["values"].get(name) for name in names)) for event in events]


class TestReports:
    def test_report_contains_epoch_mean_remaining_and_finish_time(self, clock, lines):
        bus = RecordingBus([make_tracker(clock)])
        with bus.run(epochs=3) as run:
            train(bus, run, clock, seconds=lambda epoch: 720 * epoch)

        assert get_values(bus) == [(5, 3600, 3600, 2.0), (10, 7200, 5400, 1.5), (15, 10800, 7200, 0.0)]
        assert lines() == [
            "epoch 1/3: 1:00:00, mean 1:00:00, remaining 2:00:00, finish 1970-01-01 03:16:40",
            "epoch 2/3: 2:00:00, mean 1:30:00, remaining 1:30:00, finish 1970-01-01 04:46:40",
            "epoch 3/3: 3:00:00, mean 2:00:00, remaining 0.0 s, finish 1970-01-01 06:16:40",
        ]

    def test_remaining_time_is_that_of_the_limit_in_iterations(self, clock):
        bus = RecordingBus([make_tracker(clock)])
        with bus.run(iterations=12) as run:
            train(bus, run, clock, seconds=72)

        assert get_values(bus) == [(5, 360, 360, 7 * 72 / 3600), (10, 360, 360, 2 * 72 / 3600)]

    def test_unknown_values_are_omitted_without_a_limit(self, clock, lines):
        bus = RecordingBus([make_tracker(clock)])
        with bus.run() as run:
            for _ in range(2):
                bus.emit("before_train_epoch")
                for i, batch in run.batches(BATCHES):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    clock.advance(2)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")

        assert get_values(bus) == [(5, 10, 10, None), (10, 10, 10, None)]
        assert lines()[1] == "epoch 2: 10.0 s, mean 10.0 s, remaining unknown, finish unknown"

    def test_report_every_frequency_epochs_covers_all_epochs(self, clock):
        bus = RecordingBus([make_tracker(clock, frequency=2)])
        with bus.run(epochs=5) as run:
            train(bus, run, clock, seconds=lambda epoch: epoch)

        # Epochs take 5, 10, 15, 20 and 25 seconds.
        assert get_values(bus) == [(10, 7.5, 7.5, 3 * 7.5 / 3600), (20, 17.5, 12.5, 12.5 / 3600)]

    def test_validations_and_hooks_at_the_end_of_an_epoch_are_included(self, clock):
        class WorkAtEpochEnd(Hook):
            def after_train_epoch(self, run):
                run.request_validation()

            def after_epoch(self):
                clock.advance(100)

        bus = RecordingBus([make_tracker(clock), WorkAtEpochEnd()])
        with bus.run(epochs=2, validate=lambda: clock.advance(20)) as run:
            train(bus, run, clock)

        assert get_values(bus) == [(5, 130, 130, 130 / 3600), (10, 130, 130, 0.0)]

    def test_sanity_check_validation_is_excluded(self, clock):
        class ValidateFirst(Hook):
            def before_train(self, run):
                run.request_validation()

        bus = RecordingBus([make_tracker(clock), ValidateFirst()])
        with bus.run(epochs=1, validate=lambda: clock.advance(500)) as run:
            train(bus, run, clock)

        assert get_values(bus) == [(5, 10, 10, 0.0)]

    def test_truncated_epoch_is_excluded(self, clock):
        class StopInTheSecond(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 7:
                    run.request_stop("enough")

        bus = RecordingBus([make_tracker(clock), StopInTheSecond()])
        with bus.run(epochs=4) as run:
            train(bus, run, clock)

        assert run.outcome == "stopped"
        assert get_values(bus) == [(5, 10, 10, 3 * 10 / 3600)]

    def test_epoch_that_a_hook_ends_early_is_included(self, clock):
        class EndEpochs(Hook):
            def after_train_iter(self, run):
                if run.iters_done % 2 == 0:
                    run.request_stop_epoch("short")

        bus = RecordingBus([make_tracker(clock), EndEpochs()])
        with bus.run(epochs=2) as run:
            train(bus, run, clock)

        assert get_values(bus) == [(2, 4, 4, 4 / 3600), (4, 4, 4, 0.0)]

    def test_step_of_a_report_is_the_optimizer_step_with_accumulation(self, clock):
        def step(model, batch):
            clock.advance(2 if model.training else 10)
            return model(batch).sum()

        model = nn.Linear(2, 2)
        hooks = [make_tracker(clock), recorder := ScalarRecorder()]
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
            hooks=hooks,
        )

        trainer.fit()

        assert recorder.records == [
            (2, {"time/epoch": 20.0, "time/epoch_mean": 20.0, "time/remaining_hours": 20 / 3600}),
            (5, {"time/epoch": 20.0, "time/epoch_mean": 20.0, "time/remaining_hours": 0.0}),
        ]


class TestResume:
    def resume_training(self, clock, tmp_path, at, hooks=(), **options):
        """Train with 2 s per iteration up to an iteration, resume a day later, and train with 4 s per iteration."""
        path, model = tmp_path / "saved.pth", nn.Linear(1, 1)
        bus = HookBus(hooks or [make_tracker(clock)])
        with bus.run(model=model, epochs=4) as run:
            train(bus, run, clock, until=at)
            state.write_checkpoint(path, state.build_checkpoint(run), 1)
        clock.advance(86_400)
        bus = RecordingBus([make_tracker(clock, **options)])
        with bus.run(model=model, epochs=4, resume=path) as run:
            train(bus, run, clock, seconds=4)
        return get_values(bus)

    def test_resume_at_an_epoch_boundary_continues_the_mean(self, clock, tmp_path):
        class SaveAtBoundary(Hook):
            def after_epoch(self, run):
                if run.epochs_done == 2:
                    run.request_save(saver=self)
                    run.request_stop("down")

            def plan(self, run, requests):
                return tmp_path / "boundary.pth"

            def write(self, run, checkpoint):
                state.write_checkpoint(tmp_path / "boundary.pth", checkpoint, 1)

        model = nn.Linear(1, 1)
        bus = HookBus([make_tracker(clock), SaveAtBoundary()])
        with bus.run(model=model, epochs=4) as run:
            train(bus, run, clock)
        clock.advance(86_400)
        bus = RecordingBus([make_tracker(clock)])
        with bus.run(model=model, epochs=4, resume=tmp_path / "boundary.pth") as run:
            train(bus, run, clock, seconds=4)

        # Epochs take 10, 10, 20 and 20 seconds.
        assert get_values(bus) == [(15, 20, 40 / 3, 40 / 3 / 3600), (20, 20, 15, 0.0)]

    def test_resume_inside_an_epoch_adds_both_parts(self, clock, tmp_path):
        # Epoch 2: 2 iterations of 2 s, then 3 iterations of 4 s.
        assert self.resume_training(clock, tmp_path, at=7)[0] == (10, 16, 13, 2 * 13 / 3600)

    def test_resume_with_a_frequency_includes_unreported_epochs(self, clock, tmp_path):
        hooks = [make_tracker(clock, frequency=2)]

        # Epochs take 10, 16, 20 and 20 seconds.
        assert self.resume_training(clock, tmp_path, at=7, hooks=hooks, frequency=2) == [
            (10, 13, 13, 2 * 13 / 3600),
            (20, 20, 16.5, 0.0),
        ]

    def test_resume_without_a_state_excludes_the_current_epoch(self, clock, tmp_path):
        assert self.resume_training(clock, tmp_path, at=7, hooks=[Hook()]) == [
            (15, 20, 20, 20 / 3600),
            (20, 20, 20, 0.0),
        ]


class TestRuns:
    def test_second_run_on_the_same_bus_excludes_the_time_in_between(self, clock):
        bus = RecordingBus([make_tracker(clock)])
        for epochs in (1, 2):
            with bus.run(epochs=epochs) as run:
                train(bus, run, clock)
            clock.advance(1000)

        assert get_values(bus) == [(5, 10, 10, 0.0), (10, 10, 10, 0.0)]

    def test_run_that_completes_a_truncated_epoch_adds_both_parts(self, clock):
        bus = RecordingBus([make_tracker(clock)])
        with bus.run(iterations=7) as run:
            train(bus, run, clock)
        clock.advance(1000)
        with bus.run(epochs=2) as run:
            train(bus, run, clock, seconds=4)

        assert get_values(bus) == [(5, 10, 10, 4 / 3600), (10, 16, 13, 0.0)]

    def test_fresh_run_on_the_same_bus_resets_the_durations(self, clock):
        bus = RecordingBus([make_tracker(clock)])
        for seconds in (2, 6):
            with bus.run(epochs=1, fresh=True) as run:
                train(bus, run, clock, seconds=seconds)

        assert get_values(bus) == [(5, 10, 10, 0.0), (5, 30, 30, 0.0)]

    def test_run_after_a_failure_excludes_the_time_in_between(self, clock):
        class FailOnce(Hook):
            def after_train_iter(self, run):
                if run.iters_done == 3 and clock.now < 2000:
                    raise ZeroDivisionError

        bus = RecordingBus([make_tracker(clock), FailOnce()])
        with pytest.raises(ZeroDivisionError), bus.run(epochs=1) as run:
            train(bus, run, clock)
        clock.advance(1000)
        with bus.run(epochs=1) as run:
            train(bus, run, clock)

        assert get_values(bus) == [(5, 10, 10, 0.0)]

    def test_validation_run_reports_nothing(self, clock, lines, tmp_path):
        trainer = Trainer(
            nn.Linear(2, 2),
            step_fn=lambda model, batch: model(batch).sum(),
            val_loader=BATCHES,
            work_dir=tmp_path / "run",
            default_hooks=False,
            hooks=[make_tracker(clock, log_to_file=True), recorder := ScalarRecorder()],
        )

        trainer.validate()

        assert (recorder.records, lines()) == ([], [])
        assert not (tmp_path / "run" / "logs").exists()


class SaveAtEpoch(Hook):
    """Write a checkpoint after each epoch."""

    def after_epoch(self, run):
        run.request_save(saver=self)

    def plan(self, run, requests):
        return run.require("checkpoints_dir") / f"{run.epochs_done}.pth"

    def write(self, run, checkpoint):
        state.write_checkpoint(self.plan(run, []), checkpoint, run.epochs_done)
        return False


class TestFile:
    def test_file_contains_each_line_with_a_timestamp(self, clock, tmp_path):
        bus = HookBus([make_tracker(clock, log_to_file=True)])
        with bus.run(epochs=2, work_dir=tmp_path / "run") as run:
            train(bus, run, clock, seconds=20)

        assert (tmp_path / "run" / "logs" / "time_tracking.log").read_text() == (
            "1970-01-01 00:18:20 epoch 1/2: 0:01:40, mean 0:01:40, remaining 0:01:40, finish 1970-01-01 00:20:00\n"
            "1970-01-01 00:20:00 epoch 2/2: 0:01:40, mean 0:01:40, remaining 0.0 s, finish 1970-01-01 00:20:00\n"
        )

    def test_file_is_not_created_by_default(self, clock, tmp_path):
        bus = HookBus([make_tracker(clock)])
        with bus.run(epochs=1, work_dir=tmp_path / "run") as run:
            train(bus, run, clock)

        assert not (tmp_path / "run" / "logs").exists()

    @pytest.mark.parametrize("work_dir", ["run", None])
    def test_absolute_path_is_independent_of_the_work_directory(self, clock, tmp_path, work_dir):
        path = tmp_path / "elsewhere" / "times.log"
        bus = HookBus([make_tracker(clock, log_to_file=True, log_path=str(path))])
        with bus.run(epochs=1, work_dir=work_dir and tmp_path / work_dir) as run:
            train(bus, run, clock)

        assert len(path.read_text().splitlines()) == 1

    @pytest.mark.parametrize("kind", ["file", "link", "fifo"])
    @pytest.mark.parametrize("is_inside", [True, False])
    def test_foreign_file_is_not_appended_to(self, clock, tmp_path, lines, kind, is_inside):
        path = tmp_path / "run" / "logs" / "times.log" if is_inside else tmp_path / "times.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        target = tmp_path / "target"
        target.write_text("mine")
        {
            "file": lambda: path.write_text("mine"),
            "link": lambda: path.symlink_to(target),
            "fifo": lambda: os.mkfifo(path),
        }[kind]()
        bus = HookBus([make_tracker(clock, log_to_file=True, log_path=str(path))])
        with bus.run(epochs=1, work_dir=tmp_path / "run") as run:
            train(bus, run, clock)

        assert target.read_text() == "mine"
        assert kind != "file" or path.read_text() == "mine"
        assert len(path.with_name("times-2.log").read_text().splitlines()) == 1

    @pytest.mark.parametrize("is_inside", [True, False])
    def test_resumed_run_appends_to_its_file(self, clock, tmp_path, is_inside):
        path = tmp_path / "run" / "logs" / "times.log" if is_inside else tmp_path / "times.log"
        for epochs in (1, 2):
            bus = HookBus([make_tracker(clock, log_to_file=True, log_path=str(path)), SaveAtEpoch()])
            with bus.run(epochs=epochs, work_dir=tmp_path / "run", resume="auto") as run:
                train(bus, run, clock)

        assert [line[20:29] for line in path.read_text().splitlines()] == ["epoch 1/1", "epoch 2/2"]
        assert os.listdir(path.parent).count("times-2.log") == 0

    def test_file_before_a_restart_is_kept(self, clock, tmp_path):
        for _ in range(2):
            bus = HookBus([make_tracker(clock, log_to_file=True)])
            with bus.run(epochs=1, work_dir=tmp_path / "run", resume="auto") as run:
                train(bus, run, clock)

        names = ("time_tracking.log", "time_tracking-old.log")
        assert [len((tmp_path / "run" / "logs" / name).read_text().splitlines()) for name in names] == [1, 1]

    def test_relative_path_without_a_work_dir_is_refused(self, clock):
        bus = RecordingBus([make_tracker(clock, log_to_file=True)])
        message = r"log_path: expected an absolute path .*, got time_tracking\.log\. Set `work_dir`, or set `log_path`"
        with pytest.raises(ConfigError, match=message), bus.run(epochs=2) as run:
            train(bus, run, clock)

        assert get_values(bus) == []

    def test_unwritable_file_warns_and_the_run_continues(self, clock, lines, tmp_path):
        blocker = tmp_path / "file"
        blocker.write_text("not a directory")
        bus = RecordingBus([make_tracker(clock, log_to_file=True, log_path=str(blocker / "times.log"))])
        with (
            pytest.warns(
                HookWarning, match=r"times\.log \(.*File exists: .*\) and is only in the log\. Free disk space"
            ),
            bus.run(epochs=2) as run,
        ):
            train(bus, run, clock)

        assert run.outcome == "finished"
        assert get_values(bus) == [(5, 10, 10, 10 / 3600), (10, 10, 10, 0.0)]
        assert len(lines()) == 2
        assert blocker.read_text() == "not a directory"


class TestTwoHooks:
    @pytest.mark.parametrize("order", [1, -1])
    def test_two_hooks_write_to_their_own_files(self, clock, tmp_path, order):
        trackers = [
            make_tracker(clock, name="each", log_to_file=True, log_path="each.log"),
            make_tracker(clock, name="second", log_to_file=True, log_path="second.log", frequency=2),
        ]
        bus = RecordingBus(trackers[::order])
        with bus.run(epochs=2, work_dir=tmp_path) as run:
            train(bus, run, clock)
        assert len((tmp_path / "logs/each.log").read_text().splitlines()) == 2
        assert "epoch 2/2: 10.0 s, mean 10.0 s" in (tmp_path / "logs/second.log").read_text()

    def test_two_hooks_with_the_same_file_are_rejected(self, clock, tmp_path):
        two = [TimeTrackingHook(name=name, log_to_file=True) for name in "ab"]
        with pytest.raises(ConfigError, match=r"hook 'a' .*log_path: hook 'b' also writes to time_tracking\.log"):
            HookBus(two).run(epochs=1, work_dir=tmp_path).__enter__()


class TestConformance:
    @pytest.mark.slow
    @pytest.mark.parametrize("settings", [{}, {"frequency": 2}, {"log_to_file": True}])
    def test_hook_passes_the_conformance_checks(self, settings):
        check_hook(TimeTrackingHook, **settings)

    def test_hook_has_its_short_name(self):
        assert TimeTrackingHook().name == "time_tracking"


def parse_duration(text: str) -> int:
    days, hours, minutes, seconds = re.fullmatch(r"(?:(\d+) d )?(\d+):(\d\d):(\d\d)", text).groups()
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)


class TestFormatDuration:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (None, "unknown"),
            (0, "0.0 s"),
            (0.04, "0.0 s"),
            (4.25, "4.2 s"),
            (59.94, "59.9 s"),
            (59.96, "0:01:00"),
            (60, "0:01:00"),
            (62.4, "0:01:02"),
            (3599.4, "0:59:59"),
            (3599.6, "1:00:00"),
            (3723, "1:02:03"),
            (86399, "23:59:59"),
            (86400, "1 d 0:00:00"),
            (2 * 86400 + 3 * 3600 + 4 * 60 + 5, "2 d 3:04:05"),
        ],
    )
    def test_short_durations_are_seconds_and_long_ones_clock_times(self, seconds, text):
        assert format_duration(seconds) == text

    @given(st.integers(min_value=60, max_value=10**9))
    def test_integer_seconds_are_formatted_exactly(self, seconds):
        assert parse_duration(format_duration(seconds)) == seconds

    @given(st.floats(min_value=60, max_value=1e9))
    def test_duration_is_rounded_to_the_nearest_second(self, seconds):
        assert abs(parse_duration(format_duration(seconds)) - seconds) <= 0.5


@contextmanager
def limit_file_size(size):
    """Limit the size of files, so that a larger write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestAppendLine:
    def test_directory_and_file_are_created(self, tmp_path):
        path = tmp_path / "logs" / "more" / "times.log"

        append_line(path, "one")

        assert path.read_text() == "one\n"

    def test_line_is_appended_to_an_existing_file(self, tmp_path):
        path = tmp_path / "times.log"

        append_line(path, "one")
        append_line(path, "zwölf")

        assert path.read_text(encoding="utf-8") == "one\nzwölf\n"

    @pytest.mark.parametrize("free_bytes", [1, 5, 10])
    def test_line_that_does_not_fit_is_not_written_partially(self, tmp_path, free_bytes):
        path = tmp_path / "times.log"
        append_line(path, "one")

        with limit_file_size(4 + free_bytes), pytest.raises(OSError, match="File too large"):
            append_line(path, "a line that is too long")

        assert path.read_text() == "one\n"

    def test_append_succeeds_after_disk_space_is_freed(self, tmp_path):
        path = tmp_path / "times.log"
        with limit_file_size(3), pytest.raises(OSError, match="File too large"):
            append_line(path, "lost line")

        append_line(path, "two")

        assert path.read_text() == "two\n"

    def test_error_names_the_file(self, tmp_path):
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            append_line(tmp_path, "one")
