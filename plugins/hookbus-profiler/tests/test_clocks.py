import time

import pytest
import torch

from hookbus_profiler.time_breakdown import DeviceClock, HostClock, get_clock


def test_host_clock_returns_seconds_without_blocking():
    clock = HostClock()
    first = clock.mark()
    time.sleep(0.01)
    second = clock.mark()
    assert clock.is_complete(second)
    clock.wait(second)
    assert 0.01 <= clock.elapsed(first, second) <= time.perf_counter() - first


def test_cuda_device_has_a_device_clock_and_cpu_a_host_clock():
    assert isinstance(get_clock(torch.device("cuda", 1)), DeviceClock)
    assert isinstance(get_clock(torch.device("cpu")), HostClock)


class FakeEvent:
    """Event that is complete after a synchronization."""

    reached = False

    def query(self):
        return self.reached

    def elapsed_time(self, other):
        return 250.0

    def synchronize(self):
        self.reached = True


def test_device_clock_queries_an_event_without_blocking():
    clock, event = DeviceClock(torch.device("cuda")), FakeEvent()
    assert not clock.is_complete(event)
    assert not event.reached
    clock.wait(event)
    assert clock.is_complete(event)


def test_device_clock_converts_milliseconds_to_seconds():
    assert DeviceClock(torch.device("cuda")).elapsed(FakeEvent(), FakeEvent()) == 0.25


@pytest.mark.gpu
def test_device_clock_measures_work_on_a_gpu():
    clock = DeviceClock(torch.device("cuda"))
    first = clock.mark()
    torch.cuda._sleep(10_000_000)
    second = clock.mark()
    torch.cuda.synchronize()
    assert clock.elapsed(first, second) > 0.001
