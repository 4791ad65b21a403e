import itertools
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_system_monitor.samples import Sampler, Samples


class TestTake:
    def test_take_returns_nothing_without_samples(self):
        assert Samples().take() == {}

    def test_take_returns_the_means_since_the_last_call(self):
        samples = Samples()
        for second, value in enumerate((10, 20, 60)):
            samples.add(second, {"a": value, "b": 1})
        assert samples.take() == {"a": 30, "b": 1}

        samples.add(4, {"a": 7})
        assert samples.take() == {"a": 7}
        assert samples.take() == {}

    def test_take_ignores_missing_and_nonfinite_values(self):
        samples = Samples()
        samples.add(0, {"a": None, "b": 5, "c": float("nan")})
        samples.add(1, {"a": 4, "b": None, "c": float("inf")})

        assert samples.take() == {"b": 5, "a": 4}

    def test_take_returns_the_last_value_of_a_cumulative_one(self):
        samples = Samples()
        for second, value in enumerate((10, 20, 60)):
            samples.add(second, {"gpu0/joules": value})

        assert samples.take() == {"gpu0/joules": 60}

    def test_take_misses_no_sample_of_another_thread(self):
        samples, taken = Samples(), []
        thread = threading.Thread(target=lambda: [samples.add(0, {"a/joules": n}) for n in range(1, 20_001)])
        thread.start()
        while thread.is_alive():
            taken += samples.take().values()
        taken += samples.take().values()

        assert taken == sorted(taken)
        assert taken[-1] == 20_000


class TestHistory:
    def test_history_contains_none_for_a_missing_value(self):
        samples = Samples()
        samples.add(0, {"a": 1})
        samples.add(2, {"a": None, "b": 5})
        samples.add(4, {"a": 3, "b": 6})

        assert samples.history() == ([0, 2, 4], {"a": [1, None, 3], "b": [None, 5, 6]})

    def test_history_is_not_affected_by_take(self):
        samples = Samples()
        samples.add(0, {"a": 1})
        samples.take()

        assert samples.history() == ([0], {"a": [1]})

    def test_full_history_is_reduced_to_every_second_point(self):
        samples = Samples(size=4)
        histories = []
        for second in range(18):
            samples.add(second, {"a": second})
            histories.append(samples.history()[0])

        assert histories[3:6] == [[0, 1, 2, 3], [0, 2, 4], [0, 2, 4]]
        assert histories[8] == [0, 4, 8]
        assert histories[17] == [0, 8, 16]

    @given(st.integers(2, 9), st.integers(1, 300))
    def test_history_is_bounded_and_evenly_spaced_over_the_run(self, size, count):
        samples = Samples(size=size)
        for second in range(count):
            samples.add(second, {"a": second})
        seconds, values = samples.history()

        assert len(seconds) <= size
        assert values["a"] == seconds
        assert seconds[0] == 0
        steps = {after - before for before, after in itertools.pairwise(seconds)}
        assert len(steps) <= 1
        assert count - 1 - seconds[-1] < max(steps, default=count)


class CountCalls:
    """Function that counts its calls and can be waited for."""

    def __init__(self, error=None):
        self.count, self.error = 0, error
        self._changed = threading.Condition()

    def __call__(self):
        with self._changed:
            self.count += 1
            self._changed.notify_all()
        if self.error is not None:
            raise self.error

    def wait_for(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, timeout=30)


def build_sampler(calls, interval=0.001, warn=pytest.fail):
    return Sampler(calls, interval, name="sampler under test", warn=warn)


def get_threads():
    return [thread for thread in threading.enumerate() if thread.name == "sampler under test"]


class TestThread:
    def test_sampler_calls_the_function_at_once_and_repeatedly(self):
        calls = CountCalls()
        sampler = build_sampler(calls)
        sampler.start()
        calls.wait_for(3)

        assert sampler.stop()

    def test_start_and_stop_do_not_wait_for_the_interval(self):
        calls = CountCalls()
        sampler = build_sampler(calls, interval=3600)
        sampler.start()
        calls.wait_for(1)
        time.sleep(0.2)  # long enough for a thread that does not wait

        assert sampler.stop()
        assert (calls.count, get_threads()) == (1, [])

    def test_thread_is_a_daemon_and_ends_after_stop(self):
        sampler = build_sampler(CountCalls())
        sampler.start()
        (thread,) = get_threads()

        assert thread.daemon
        assert sampler.stop()
        assert get_threads() == []

    def test_sampler_can_be_stopped_twice(self):
        sampler = build_sampler(CountCalls())
        sampler.start()

        assert [sampler.stop(), sampler.stop()] == [True, True]


class TestFailure:
    def test_failed_sample_is_reported_once_and_sampling_continues(self):
        calls, lines = CountCalls(OSError("broken")), []
        sampler = build_sampler(calls, warn=lines.append)
        sampler.start()
        calls.wait_for(5)
        sampler.stop()

        assert lines == ["a sample failed: OSError: broken. Sampling continues."]


class TestBlockedSample:
    def test_stop_does_not_wait_indefinitely_for_a_sample(self):
        unblocked, blocked, lines = threading.Event(), threading.Event(), []

        def block():
            blocked.set()
            unblocked.wait(30)

        sampler = build_sampler(block, warn=lines.append)
        sampler.start()
        assert blocked.wait(30)

        assert not sampler.stop(timeout=0.01)
        assert lines == ["a sample is still in progress after 0.01 s. Its thread ends when the sample returns."]
        unblocked.set()
        assert sampler.stop()

    @pytest.mark.slow
    def test_blocked_sample_does_not_keep_the_process_alive(self):
        script = (
            "import threading\n"
            "from hookbus_system_monitor.samples import Sampler\n"
            "started = threading.Event()\n"
            "def block():\n"
            "    started.set()\n"
            "    threading.Event().wait()\n"
            "Sampler(block, 1, name='sampler', warn=print).start()\n"
            "started.wait()\n"
            "raise SystemExit(7)\n"
        )
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7
