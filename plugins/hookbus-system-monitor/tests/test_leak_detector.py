import math

import numpy
import pytest

from hookbus_system_monitor.threshold_watch import LeakDetector


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
