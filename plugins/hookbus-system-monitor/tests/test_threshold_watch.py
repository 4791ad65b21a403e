from hookbus_system_monitor.threshold_watch import ThresholdWatch

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
