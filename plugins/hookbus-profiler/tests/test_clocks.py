import time

import pytest
import torch

from hookbus_profiler.clocks import DeviceClock, HostClock, clock_for


def test_the_host_tells_seconds_at_once():
    clock = HostClock()
    first = clock.mark()
    time.sleep(0.01)
    second = clock.mark()
    assert clock.is_past(second)
    clock.wait(second)
    assert 0.01 <= clock.between(first, second) <= time.perf_counter() - first


def test_a_device_is_measured_by_its_own_clock_and_the_cpu_by_that_of_the_host():
    assert isinstance(clock_for(torch.device("cuda", 1)), DeviceClock)
    assert isinstance(clock_for(torch.device("cpu")), HostClock)


class FakeEvent:
    """An event of a device that gets there when it is waited for."""

    reached = False

    def query(self):
        return self.reached

    def elapsed_time(self, other):
        return 250.0

    def synchronize(self):
        self.reached = True


def test_whether_a_device_has_got_to_an_event_is_asked_without_waiting():
    clock, event = DeviceClock(torch.device("cuda")), FakeEvent()
    assert not clock.is_past(event)
    assert not event.reached
    clock.wait(event)
    assert clock.is_past(event)


def test_events_of_a_device_are_apart_by_its_own_milliseconds():
    assert DeviceClock(torch.device("cuda")).between(FakeEvent(), FakeEvent()) == 0.25


@pytest.mark.gpu
def test_events_of_a_real_device_measure_its_work():
    clock = DeviceClock(torch.device("cuda"))
    first = clock.mark()
    torch.cuda._sleep(10_000_000)
    second = clock.mark()
    torch.cuda.synchronize()
    assert clock.between(first, second) > 0.001
