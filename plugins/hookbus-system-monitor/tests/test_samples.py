import itertools
import threading

from hypothesis import given
from hypothesis import strategies as st

from hookbus_system_monitor.samples import Samples


class TestTake:
    def test_take_returns_nothing_without_samples(self):
        assert Samples().take() == {}

    def test_take_returns_the_means_since_the_last_call(self):
        samples = Samples()
        for second, value in enumerate((10, 20, 60)):
            samples.add(second, {"a": value, "b": 1})
        assert samples.take() == {"a": 30, "b": 1}

        samples.add(4, {"a": 7})
        assert samples.take() == {"a": 7}
        assert samples.take() == {}

    def test_take_ignores_missing_and_nonfinite_values(self):
        samples = Samples()
        samples.add(0, {"a": None, "b": 5, "c": float("nan")})
        samples.add(1, {"a": 4, "b": None, "c": float("inf")})

        assert samples.take() == {"b": 5, "a": 4}

    def test_take_returns_the_last_value_of_a_cumulative_one(self):
        samples = Samples()
        for second, value in enumerate((10, 20, 60)):
            samples.add(second, {"gpu0/joules": value})

        assert samples.take() == {"gpu0/joules": 60}

    def test_take_misses_no_sample_of_another_thread(self):
        samples, taken = Samples(), []
        thread = threading.Thread(target=lambda: [samples.add(0, {"a/joules": n}) for n in range(1, 20_001)])
        thread.start()
        while thread.is_alive():
            taken += samples.take().values()
        taken += samples.take().values()

        assert taken == sorted(taken)
        assert taken[-1] == 20_000


class TestHistory:
    def test_history_contains_none_for_a_missing_value(self):
        samples = Samples()
        samples.add(0, {"a": 1})
        samples.add(2, {"a": None, "b": 5})
        samples.add(4, {"a": 3, "b": 6})

        assert samples.history() == ([0, 2, 4], {"a": [1, None, 3], "b": [None, 5, 6]})

    def test_history_is_not_affected_by_take(self):
        samples = Samples()
        samples.add(0, {"a": 1})
        samples.take()

        assert samples.history() == ([0], {"a": [1]})

    def test_full_history_is_reduced_to_every_second_point(self):
        samples = Samples(size=4)
        histories = []
        for second in range(18):
            samples.add(second, {"a": second})
            histories.append(samples.history()[0])

        assert histories[3:6] == [[0, 1, 2, 3], [0, 2, 4], [0, 2, 4]]
        assert histories[8] == [0, 4, 8]
        assert histories[17] == [0, 8, 16]

    @given(st.integers(2, 9), st.integers(1, 300))
    def test_history_is_bounded_and_evenly_spaced_over_the_run(self, size, count):
        samples = Samples(size=size)
        for second in range(count):
            samples.add(second, {"a": second})
        seconds, values = samples.history()

        assert len(seconds) <= size
        assert values["a"] == seconds
        assert seconds[0] == 0
        steps = {after - before for before, after in itertools.pairwise(seconds)}
        assert len(steps) <= 1
        assert count - 1 - seconds[-1] < max(steps, default=count)
