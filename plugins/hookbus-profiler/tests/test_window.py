import contextlib
import time

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.testing import fake_training
from hookbus_profiler.plan import Plan
from hookbus_profiler.session import is_profiling
from hookbus_profiler.window import Window

NO_TRACES = Plan(wait=10**6, warmup=0, active=1)


class Opener(Hook):
    """Opens a window for a training, on a device that the test says."""

    def __init__(self, plan=NO_TRACES, length=None, device="cpu", deliver=None, **options):
        super().__init__()
        self.delivered = []
        record = (lambda cycle, number: self.delivered.append((number, cycle.recorded))) if deliver is None else deliver
        self.window = Window(
            "window", plan, length, torch.device(device), counts_flops=False, options=options, deliver=record
        )

    def before_train(self, run):
        self.window.open(run.bus)


def profile(hooks=(), *, batches=8, **options):
    opener = Opener(**options)
    bus = HookBus([opener, *hooks])
    try:
        fake_training(bus=bus, epochs=1, batches=batches)
    finally:
        assert not is_profiling()
        assert list(bus.hooks.values()) == [opener, *hooks]
        assert bus.table.wrap is None
    opener.window.split.finish()
    return opener


class TestIterations:
    def test_count_but_the_first_one(self):
        assert profile(batches=8).window.split.plain.iterations == 7

    def test_end_with_the_length(self):
        window = profile(batches=8, length=5).window
        assert (window.iterations, window.split.plain.iterations) == (5, 4)

    def test_that_are_traced_and_the_one_after_a_trace_stand_apart(self):
        # 0 is the first one, 1 to 3 are traced, 4 comes after them, 5 to 7 are like all others.
        opener = profile(batches=8, plan=Plan(wait=1, warmup=1, active=2))
        split = opener.window.split
        assert (split.traced.iterations, split.plain.iterations, opener.delivered) == (3, 3, [(1, 2)])

    def test_that_are_traced_from_the_first_one_on_count_from_there(self):
        split = profile(batches=4, plan=Plan(wait=0, warmup=0, active=2, repeat=0)).window.split
        assert (split.traced.iterations, split.plain.iterations) == (4, 0)

    def test_go_on_after_a_trace_that_could_not_be_delivered(self):
        def fail(cycle, number):
            raise OSError("the disk is full")

        with pytest.warns(UserWarning, match="hook 'window' .* failed at after_train_iter: OSError: the disk is full"):
            window = profile(batches=8, plan=Plan(wait=1, warmup=0, active=1, repeat=2), deliver=fail).window
        # 0 is the first one, 1 and 3 are traced, 2 and 4 come after a trace.
        assert (window.split.traced.iterations, window.split.plain.iterations) == (2, 3)

    def test_do_not_hold_the_time_in_which_a_trace_is_written(self):
        plan = Plan(wait=0, warmup=0, active=1, repeat=0)
        split = profile(batches=4, plan=plan, deliver=lambda cycle, number: time.sleep(0.3)).window.split
        assert split.traced.iterations == 4
        assert split.traced.seconds < 0.3


class TestHooks:
    def test_have_no_time_for_what_they_do_in_a_validation(self):
        class Validating(Hook):
            priority = 100

            def before_val(self):
                time.sleep(0.02)

        class Working(Hook):
            def after_train_iter(self, run):
                time.sleep(0.002)
                if run.iters_done == 4:
                    run.request_validation()

        opener = Opener()
        bus = HookBus([opener, Validating(), Working()])
        fake_training(bus=bus, epochs=1, batches=8, scores=lambda epoch: {"loss": 1.0})
        opener.window.split.finish()
        times = opener.window.split.plain

        assert "validating" not in times.hooks
        assert 0.014 <= times.hooks["working"] <= times.seconds

    def test_have_no_time_for_the_window_itself(self):
        assert "window" not in profile().window.split.plain.hooks


class TestTheEnd:
    @pytest.mark.parametrize("at", ["before_train_epoch", "before_train_iter", "after_forward", "after_train_iter"])
    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
    def test_comes_once_in_a_run_that_fails_and_delivers_what_was_recorded(self, at, error):
        def fail(self, run):
            if run.clock.number("iter") == 4 or at == "before_train_epoch":
                raise error

        opener = Opener(Plan(wait=1, warmup=1, active=9))
        failing = type("Failing", (Hook,), {at: fail})()
        bus = HookBus([opener, failing])
        with contextlib.suppress(error):
            fake_training(bus=bus, epochs=1, batches=8)
        assert not is_profiling()
        assert list(bus.hooks) == ["opener", "failing"]
        assert [number for number, _ in opener.delivered] == ([] if at == "before_train_epoch" else [1])

    def test_comes_before_anything_was_recorded(self):
        assert profile(batches=3, plan=Plan(wait=1, warmup=5, active=1)).delivered == []


class Queue:
    """A device that gets to nothing before it is waited for; how often that is, it counts."""

    def __init__(self, monkeypatch):
        self.waits = 0
        queue = self

        class Event:
            made = 0

            def __init__(self, device, enable_timing):
                assert (device.type, enable_timing) == ("cuda", True)
                Event.made += 1
                self.number = Event.made

            def record(self):
                """Ten milliseconds after the one before."""

            def query(self):
                return queue.waits > 0

            def synchronize(self):
                queue.waits += 1

            def elapsed_time(self, other):
                assert queue.waits
                return 10.0 * (other.number - self.number)

        monkeypatch.setattr(torch, "Event", Event)
        for module in (torch.cuda, torch.accelerator):
            monkeypatch.setattr(module, "synchronize", self._wait)

    def _wait(self, *_):
        self.waits += 1


class TestADevice:
    def test_is_measured_by_its_own_clock_and_not_waited_for_in_any_iteration(self, monkeypatch):
        queue = Queue(monkeypatch)

        class Look(Hook):
            waits = None

            def after_train(self):
                Look.waits = queue.waits

        opener = profile([Look()], batches=50, device="cuda")

        assert Look.waits == 0
        assert queue.waits > 0
        parts = opener.window.split.plain.parts
        # Every piece is ten milliseconds long; two lie between the gradients and the end of the update, one behind it.
        assert opener.window.split.plain.iterations == 49
        assert {part: round(seconds / 0.49, 6) for part, seconds in parts.items()} == {
            "data": 1, "forward": 1, "backward": 1, "optimizer": 2, "other": 1,
        }  # fmt: skip
