import contextlib
import time

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.testing import fake_training
from hookbus_profiler.config import ScheduleConfig
from hookbus_profiler.profiling_window import Cycle, ProfilingWindow, is_profiling

NO_TRACES = ScheduleConfig(wait=10**6, warmup=0, active=1)


class OpenWindow(Hook):
    """Open a window for a training on the given device."""

    def __init__(self, plan=NO_TRACES, length=None, device="cpu", deliver=None, **options):
        super().__init__()
        self.delivered = []
        record = (
            (lambda cycle, number: self.delivered.append((number, cycle.recorded_iterations)))
            if deliver is None
            else deliver
        )
        self.window = ProfilingWindow(
            "window", plan, length, torch.device(device), counts_flops=False, options=options, deliver=record
        )

    def before_train(self, run):
        self.window.open(run)


def profile(hooks=(), *, batches=8, **options):
    hook = OpenWindow(**options)
    bus = HookBus([hook, *hooks])
    try:
        fake_training(bus=bus, epochs=1, batches=batches)
    finally:
        assert not is_profiling()
        assert list(bus.hooks.values()) == [hook, *hooks]
        assert bus.table.wrappers == []
    hook.window.breakdown.finish()
    return hook


class TestIterations:
    def test_first_iteration_is_not_plain(self):
        assert profile(batches=8).window.breakdown.plain.iterations == 7

    def test_window_closes_after_its_length(self):
        window = profile(batches=8, length=5).window
        assert (window.iterations, window.breakdown.plain.iterations) == (5, 4)

    def test_traced_iterations_and_the_next_one_are_not_plain(self):
        # Iteration 0 is the first one, 1 to 3 are traced, 4 follows a trace, 5 to 7 are plain.
        hook = profile(batches=8, plan=ScheduleConfig(wait=1, warmup=1, active=2))
        breakdown = hook.window.breakdown
        assert (breakdown.traced.iterations, breakdown.plain.iterations, hook.delivered) == (3, 3, [(1, 2)])

    @pytest.mark.slow
    def test_iterations_are_traced_from_the_first_one_without_wait_and_warmup(self):
        breakdown = profile(batches=4, plan=ScheduleConfig(wait=0, warmup=0, active=2, repeat=0)).window.breakdown
        assert (breakdown.traced.iterations, breakdown.plain.iterations) == (4, 0)

    @pytest.mark.slow
    def test_measurement_continues_after_a_failed_delivery(self):
        def fail(cycle, number):
            raise OSError("No space left on device")

        with pytest.warns(
            UserWarning, match="hook 'window' .* failed at after_train_iter: OSError: No space left on device"
        ):
            window = profile(batches=8, plan=ScheduleConfig(wait=1, warmup=0, active=1, repeat=2), deliver=fail).window
        # Iteration 0 is the first one, 1 and 3 are traced, 2 and 4 follow a trace.
        assert (window.breakdown.traced.iterations, window.breakdown.plain.iterations) == (2, 3)

    @pytest.mark.slow
    def test_delivery_of_a_trace_is_not_measured(self):
        plan = ScheduleConfig(wait=0, warmup=0, active=1, repeat=0)
        breakdown = profile(batches=4, plan=plan, deliver=lambda cycle, number: time.sleep(0.3)).window.breakdown
        assert breakdown.traced.iterations == 4
        assert breakdown.traced.seconds < 0.3


class TestHooks:
    def test_time_of_hooks_excludes_validations(self):
        class SleepInValidation(Hook):
            priority = 100

            def before_val(self):
                time.sleep(0.02)

        class Sleep(Hook):
            def after_train_iter(self, run):
                time.sleep(0.002)
                if run.iters_done == 4:
                    run.request_validation()

        hook = OpenWindow()
        bus = HookBus([hook, SleepInValidation(), Sleep()])
        fake_training(bus=bus, epochs=1, batches=8, scores=lambda epoch: {"loss": 1.0})
        hook.window.breakdown.finish()
        times = hook.window.breakdown.plain

        assert "sleep_in_validation" not in times.hooks
        assert 0.014 <= times.hooks["sleep"] <= times.seconds

    def test_time_of_hooks_excludes_the_window(self):
        assert "window" not in profile().window.breakdown.plain.hooks


class TestClose:
    @pytest.mark.slow
    @pytest.mark.parametrize("at", ["before_train_epoch", "before_train_iter", "after_forward", "after_train_iter"])
    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
    def test_failed_run_closes_the_window_and_delivers_the_recorded_cycle(self, at, error):
        def fail(self, run):
            if run.current("iter") == 4 or at == "before_train_epoch":
                raise error

        hook = OpenWindow(ScheduleConfig(wait=1, warmup=1, active=9))
        failing = type("Failing", (Hook,), {at: fail})()
        bus = HookBus([hook, failing])
        with contextlib.suppress(error):
            fake_training(bus=bus, epochs=1, batches=8)
        assert not is_profiling()
        assert list(bus.hooks) == ["open_window", "failing"]
        assert [number for number, _ in hook.delivered] == ([] if at == "before_train_epoch" else [1])

    def test_cycle_without_recorded_iterations_is_not_delivered(self):
        assert profile(batches=3, plan=ScheduleConfig(wait=1, warmup=5, active=1)).delivered == []


class FakeDevice:
    """Device that completes its work only when synchronized, and counts the synchronizations."""

    def __init__(self, monkeypatch):
        self.waits = 0
        device = self

        class Event:
            count = 0

            def __init__(self, device, enable_timing):
                assert (device.type, enable_timing) == ("cuda", True)
                Event.count += 1
                self.number = Event.count

            def record(self):
                """Record the event ten milliseconds after the previous one."""

            def query(self):
                return device.waits > 0

            def synchronize(self):
                device.waits += 1

            def elapsed_time(self, other):
                assert device.waits
                return 10.0 * (other.number - self.number)

        monkeypatch.setattr(torch, "Event", Event)
        for module in (torch.cuda, torch.accelerator):
            monkeypatch.setattr(module, "synchronize", self._wait)

    def _wait(self, *_):
        self.waits += 1


class TestDevice:
    def test_device_is_measured_by_events_without_synchronization(self, monkeypatch):
        device = FakeDevice(monkeypatch)

        class CountSynchronizations(Hook):
            waits = None

            def after_train(self):
                CountSynchronizations.waits = device.waits

        hook = profile([CountSynchronizations()], batches=50, device="cuda")

        assert CountSynchronizations.waits == 0
        assert device.waits > 0
        parts = hook.window.breakdown.plain.parts
        # Each interval takes ten milliseconds; `optimizer` consists of two intervals.
        assert hook.window.breakdown.plain.iterations == 49
        assert {part: round(seconds / 0.49, 6) for part, seconds in parts.items()} == {
            "data": 1, "forward": 1, "backward": 1, "optimizer": 2, "other": 1,
        }  # fmt: skip


def work():
    torch.ones(2, 2) @ torch.ones(2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [0, 2])
def test_cycle_is_active_from_construction_to_stop(warmup):
    cycle = Cycle(warmup, 2)
    for _ in range(warmup + 2):
        assert is_profiling()
        assert not cycle.is_complete
        work()
        cycle.profile.step()
    assert cycle.is_complete
    cycle.stop()
    cycle.stop()
    assert not is_profiling()
    counts = {event.key: event.count for event in cycle.profile.key_averages()}
    assert counts["aten::mm"] == 2


def test_cycle_stopped_early_has_the_recorded_iterations():
    cycle = Cycle(1, 5)
    for _ in range(3):
        work()
        cycle.profile.step()
    cycle.stop()
    assert not is_profiling()
    assert cycle.recorded_iterations == 2
    assert {event.key: event.count for event in cycle.profile.key_averages()}["aten::mm"] == 2


def test_cycle_stopped_during_warm_up_has_no_recorded_iterations():
    cycle = Cycle(3, 1)
    cycle.profile.step()
    cycle.stop()
    assert (cycle.recorded_iterations, is_profiling()) == (0, False)
