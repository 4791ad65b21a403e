import time

import pytest
import torch

from hookbus_profiler.clocks import DeviceClock, HostClock, clock_for


def test_the_host_tells_seconds_at_once():
    clock = HostClock()
    first = clock.mark()
    time.sleep(0.01)
    assert clock.between(first, clock.mark()) >= 0.01


def test_a_device_is_measured_by_its_own_clock_and_the_cpu_by_that_of_the_host():
    assert isinstance(clock_for(torch.device("cuda", 1)), DeviceClock)
    assert isinstance(clock_for(torch.device("cpu")), HostClock)


class FakeEvent:
    """An event of a device that gets there when the test says so."""

    reached = False

    def query(self):
        return self.reached

    def elapsed_time(self, other):
        return 250.0

    def synchronize(self):
        raise AssertionError("the host waits for the device")


def test_an_event_is_read_only_when_the_device_has_got_there():
    clock, first, second = DeviceClock(torch.device("cuda")), FakeEvent(), FakeEvent()
    assert clock.between(first, second) is None
    second.reached = True
    assert clock.between(first, second) == 0.25


@pytest.mark.gpu
def test_events_of_a_real_device_measure_its_work():
    clock = DeviceClock(torch.device("cuda"))
    first = clock.mark()
    torch.cuda._sleep(10_000_000)
    second = clock.mark()
    torch.cuda.synchronize()
    assert clock.between(first, second) > 0.001
