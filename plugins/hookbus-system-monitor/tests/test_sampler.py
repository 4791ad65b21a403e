import subprocess
import sys
import threading
import time

import pytest

from hookbus_system_monitor.sampler import Sampler


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
            "from hookbus_system_monitor.sampler import Sampler\n"
            "started = threading.Event()\n"
            "def block():\n"
            "    started.set()\n"
            "    threading.Event().wait()\n"
            "Sampler(block, 1, name='sampler', warn=print).start()\n"
            "started.wait()\n"
            "raise SystemExit(7)\n"
        )
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7
