import math
import multiprocessing
from types import SimpleNamespace

import numpy
import psutil
import pytest
import torch

from hookbus_system_monitor import memory
from hookbus_system_monitor.cgroup import Usage
from hookbus_system_monitor.memory import (
    LeakDetector,
    Memory,
    ThresholdWatch,
    format_memory,
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

    def test_peak_on_windows_is_that_of_the_working_set(self, monkeypatch):
        process = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=300))
        monkeypatch.setattr(memory, "resource", None)
        monkeypatch.setattr(memory, "get_process", lambda: process)

        assert get_process_peak(200) == 300
        assert get_process_peak(400) == 400

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


GB = 2**30


def collect_warnings(watch, sizes):
    """Return the warnings at each size."""
    return [list(watch.update(50 * i, round(size * GB))) for i, size in enumerate(sizes, 1)]


class TestThreshold:
    def test_size_above_the_limit_is_one_warning_until_it_falls(self):
        warnings = collect_warnings(ThresholdWatch("GPU memory", 3), [2.5, 3.5, 4, 3, 3.25])

        assert warnings == [
            [],
            ["GPU memory is 3.50 GB, which exceeds the `warn_threshold` of 3 GB."],
            [],
            [],
            ["GPU memory is 3.25 GB, which exceeds the `warn_threshold` of 3 GB."],
        ]

    def test_size_without_a_limit_causes_no_warning(self):
        assert collect_warnings(ThresholdWatch("GPU memory", None), [2, 3, 1000]) == [[], [], []]


class TestGrowth:
    def test_steady_growth_is_one_warning_with_its_rate(self):
        warnings = collect_warnings(ThresholdWatch("GPU memory", None), [4 + 0.1 * i for i in range(40)])

        assert [len(messages) for messages in warnings] == [0] * 19 + [1] + [0] * 20
        assert warnings[19][0].startswith(
            "GPU memory grows steadily, by 2 GB per 1000 iterations, and is now 5.90 GB, which indicates"
        )


def detect(values, size=20, step=50):
    """Return pairs (number of the point, rate) at which growth is detected."""
    growth = LeakDetector(size)
    results = [(i, growth.add(i * step, value)) for i, value in enumerate(values, 1)]
    return [result for result in results if result[1] is not None]


class TestSteadyGrowth:
    def test_steady_growth_is_detected_once_when_the_window_is_full(self):
        assert detect([1000 + 10 * i for i in range(60)]) == [(20, 0.2)]

    def test_growth_that_starts_late_is_detected(self):
        values = [1000] * 20 + [1000 + 10 * i for i in range(1, 41)]
        windows = [(end, numpy.arange(20) * 50, numpy.array(values[end - 20 : end])) for end in range(21, 61)]
        end, x, y = next(window for window in windows if numpy.corrcoef(window[1], window[2])[0, 1] ** 2 >= 0.95)

        assert detect(values) == [(end, pytest.approx(numpy.polyfit(x, y, 1)[0]))]
        assert 30 < end < 40

    def test_noisy_growth_is_detected(self):
        noisy = [1000 + 10 * i + 8 * math.sin(7 * i) for i in range(60)]

        assert len(detect(noisy)) == 1


class TestNoGrowth:
    @pytest.mark.parametrize(
        "values",
        [
            [1000.0] * 100,
            [1000 + 30 * math.sin(i) for i in range(100)],
            [1000.0] * 30 + [2000.0] * 70,
            [2000 - 10 * i for i in range(100)],
            [1000 + 0.5 * i for i in range(100)],
            [1000 + 500 * (1 - math.exp(-i / 3)) for i in range(100)],
            [1000 + 10 * i for i in range(19)],
        ],
        ids=["flat", "swinging", "a step", "falling", "too slow", "levels off", "too short"],
    )
    def test_values_without_steady_growth_are_not_detected(self, values):
        assert detect(values) == []


MB = 2**20
MEMORY = Memory(total=255767 * MB, available=246360 * MB, used=9407 * MB, percent=3.7)
SWAP = Memory(total=8192 * MB, available=5740 * MB, used=2452 * MB, percent=29.9)


def test_memory_sentence_contains_all_sizes():
    assert format_memory(MEMORY, SWAP, 5434 * MB)[0] == (
        "The system has 250 GB (246360 MB + 9407 MB) of memory and 8 GB (5740 MB + 2452 MB) of swap memory in total. "
        "Currently 9407 MB (3.7%) of memory and 2452 MB (29.9%) of swap memory were consumed. And the current training "
        "process consumed 5434 MB of memory."
    )


def test_memory_fields_contain_all_sizes():
    assert format_memory(MEMORY, SWAP, 5434 * MB)[1] == (
        "Memory information available_memory: 246360 MB, used_memory: 9407 MB, memory_utilization: 3.7 %, "
        "available_swap_memory: 5740 MB, used_swap_memory: 2452 MB, swap_memory_utilization: 29.9 %, "
        "current_process_memory: 5434 MB"
    )


def test_memory_sentence_reports_a_system_without_swap():
    assert "0 GB (0 MB + 0 MB) of swap memory in total" in format_memory(MEMORY, Memory(0, 0, 0, 0.0), MB)[0]


def test_sizes_are_rounded_to_the_nearest_megabyte():
    assert format_memory(MEMORY, SWAP, round(1.6 * MB))[1].endswith("current_process_memory: 2 MB")
