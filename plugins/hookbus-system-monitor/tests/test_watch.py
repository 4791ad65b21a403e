from hookbus_system_monitor.watch import Watch

GB = 2**30


def seen(watch, sizes):
    """What was told at each size."""
    return [list(watch.see(50 * i, round(size * GB))) for i, size in enumerate(sizes, 1)]


class TestTooMuch:
    def test_is_told_once_until_there_was_less(self):
        found = seen(Watch("this memory", 3), [2.5, 3.5, 4, 3, 3.25])

        assert found == [
            [],
            ["this memory is 3.50 GB, more than the warn_threshold of 3 GB."],
            [],
            [],
            ["this memory is 3.25 GB, more than the warn_threshold of 3 GB."],
        ]

    def test_is_nothing_without_a_limit(self):
        assert seen(Watch("this memory", None), [2, 3, 1000]) == [[], [], []]


class TestGrowth:
    def test_is_told_once_with_its_rate(self):
        found = seen(Watch("this memory", None), [4 + 0.1 * i for i in range(40)])

        assert [len(each) for each in found] == [0] * 19 + [1] + [0] * 20
        assert found[19][0].startswith(
            "this memory grows steadily, by 2 GB per 1000 iterations, and is 5.90 GB now. Something keeps"
        )
