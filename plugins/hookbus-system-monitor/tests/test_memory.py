import multiprocessing

import psutil
import pytest
import torch

from hookbus_system_monitor.cgroup import Usage
from hookbus_system_monitor.memory import (
    Memory,
    get_process_memory,
    get_process_peak,
    get_swap_memory,
    get_system_memory,
)


class Limits:
    """Control group with the given limits."""

    def __init__(self, memory=None, swap=None):
        self._memory, self._swap = memory, swap

    def get_memory(self):
        return self._memory

    def get_swap(self):
        return self._swap


@pytest.fixture(autouse=True)
def _host(monkeypatch):
    """Fake a host with 1000 bytes of memory and 200 bytes of swap."""
    memory = psutil.virtual_memory()._replace(total=1000, available=750, used=250, percent=25.0)
    swap = psutil.swap_memory()._replace(total=200, free=150, used=50, percent=25.0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)


class TestSystem:
    def test_memory_without_a_limit_is_that_of_the_host(self):
        assert get_system_memory(Limits()) == Memory(1000, 750, 250, 25.0)
        assert get_swap_memory(Limits()) == Memory(200, 150, 50, 25.0)

    def test_memory_with_a_lower_limit_is_that_of_the_container(self):
        assert get_system_memory(Limits(memory=Usage(400, 100))) == Memory(400, 300, 100, 25.0)
        assert get_swap_memory(Limits(swap=Usage(100, 10))) == Memory(100, 90, 10, 10.0)

    @pytest.mark.parametrize("limit", [1000, 9223372036854771712])
    def test_memory_with_a_higher_limit_is_that_of_the_host(self, limit):
        assert get_system_memory(Limits(memory=Usage(limit, 100))) == Memory(1000, 750, 250, 25.0)

    def test_swap_limit_of_zero_is_no_swap(self):
        assert get_swap_memory(Limits(swap=Usage(0, 0))) == Memory(0, 0, 0, 0.0)

    def test_usage_above_the_limit_leaves_no_available_memory(self):
        assert get_system_memory(Limits(memory=Usage(400, 500))) == Memory(400, 0, 400, 100.0)


class TestProcess:
    def test_process_memory_grows_with_an_allocation(self):
        before = get_process_memory()
        buffer = torch.ones(2**26, dtype=torch.uint8)

        assert get_process_memory() - before >= 0.9 * buffer.numel()

    def test_process_peak_includes_released_memory(self):
        buffer = torch.ones(2**26, dtype=torch.uint8)
        then = get_process_memory()
        del buffer

        assert get_process_peak(get_process_memory()) >= 0.99 * then  # the kernel updates both with a delay

    def test_process_peak_is_at_least_the_current_size(self):
        assert get_process_peak(2**60) == 2**60

    def test_process_memory_is_that_of_the_child_after_a_fork(self):
        def grow(pipe):
            before = get_process_memory()
            buffer = b"1" * 2**26
            pipe.send((get_process_memory() - before, len(buffer)))

        get_process_memory()
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=grow, args=(there,))
        child.start()
        grown, buffer = here.recv()
        child.join()

        assert grown >= 0.9 * buffer
