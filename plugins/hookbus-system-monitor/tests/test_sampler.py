import subprocess
import sys
import threading
import time

import pytest

from hookbus_system_monitor.sampler import Sampler


class Calls:
    """Something to sample; tells when it was called so many times."""

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


def sampler_of(calls, interval=0.001, say=pytest.fail):
    return Sampler(calls, interval, name="sampler under test", say=say)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "sampler under test"]


class TestTheThread:
    def test_samples_at_once_and_again(self):
        calls = Calls()
        sampler = sampler_of(calls)
        sampler.start()
        calls.wait_for(3)

        assert sampler.stop()

    def test_does_not_wait_for_the_interval_to_begin_or_to_end(self):
        calls = Calls()
        sampler = sampler_of(calls, interval=3600)
        sampler.start()
        calls.wait_for(1)
        time.sleep(0.2)  # long enough for a thread that does not wait

        assert sampler.stop()
        assert (calls.count, threads()) == (1, [])

    def test_is_one_daemon_that_is_gone_after_the_stop(self):
        sampler = sampler_of(Calls())
        sampler.start()
        (thread,) = threads()

        assert thread.daemon
        assert sampler.stop()
        assert threads() == []

    def test_can_be_stopped_twice(self):
        sampler = sampler_of(Calls())
        sampler.start()

        assert [sampler.stop(), sampler.stop()] == [True, True]


class TestAFailure:
    def test_costs_one_sample_and_is_told_once(self):
        calls, lines = Calls(OSError("broken")), []
        sampler = sampler_of(calls, say=lines.append)
        sampler.start()
        calls.wait_for(5)
        sampler.stop()

        assert lines == ["a sample failed (OSError: broken); others are still taken."]


class TestASampleThatHangs:
    def test_is_not_waited_for_without_end(self):
        going_on, hanging, lines = threading.Event(), threading.Event(), []

        def hang():
            hanging.set()
            going_on.wait(30)

        sampler = sampler_of(hang, say=lines.append)
        sampler.start()
        assert hanging.wait(30)

        assert not sampler.stop(timeout=0.01)
        assert lines == ["a sample has taken longer than 0.01 s; its thread ends when it comes back."]
        going_on.set()
        assert sampler.stop()

    @pytest.mark.slow
    def test_keeps_no_process_alive(self):
        script = (
            "import threading\n"
            "from hookbus_system_monitor.sampler import Sampler\n"
            "begun = threading.Event()\n"
            "def hang():\n"
            "    begun.set()\n"
            "    threading.Event().wait()\n"
            "Sampler(hang, 1, name='it', say=print).start()\n"
            "begun.wait()\n"
            "raise SystemExit(7)\n"
        )
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7
