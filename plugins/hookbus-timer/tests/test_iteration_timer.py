from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.iteration_timer import IterationTimer

durations = st.integers(0, 1000)
iterations = st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=40)


def time_iterations(laps, iterations, now=0, samples=4):
    """Time iterations of (seconds of the pause before, of fetching, of computing), and return the end."""
    laps.start(now)
    for pause, fetch, compute in iterations:
        laps.pause(now)
        now += pause
        laps.resume(now)
        now += fetch
        laps.end_fetch(now)
        now += compute
        laps.end_iteration(now, samples, fetches_next=True)
    return now


class TestLaps:
    def test_iteration_is_timed_from_the_end_of_the_previous_one(self):
        laps = IterationTimer(10)

        time_iterations(laps, [(0, 2, 3), (0, 4, 5)])

        assert (laps.rates.iteration, laps.rates.data) == (7.0, 3.0)

    @given(iterations, st.integers(1, 50))
    def test_means_are_over_the_window_without_the_pauses(self, iterations, size):
        laps, last = IterationTimer(size), iterations[-size:]

        time_iterations(laps, iterations)

        assert laps.rates.iteration == sum(fetch + compute for _, fetch, compute in last) / len(last)
        assert laps.rates.data == sum(fetch for _, fetch, _ in last) / len(last)

    @given(iterations)
    def test_data_time_is_included_in_the_iteration_time(self, iterations):
        laps = IterationTimer(100)

        time_iterations(laps, iterations)

        assert 0 <= laps.rates.data <= laps.rates.iteration

    @given(iterations, iterations)
    def test_cleared_timer_equals_a_new_one(self, before, after):
        used, new = IterationTimer(10), IterationTimer(10)
        now = time_iterations(used, before)

        used.clear()
        time_iterations(used, after, now)
        time_iterations(new, after)

        assert used.rates == new.rates

    def test_timer_is_true_after_the_first_iteration(self):
        laps = IterationTimer(10)
        assert not laps

        time_iterations(laps, [(0, 1, 1)])

        assert laps

    def test_pause_inside_an_iteration_is_excluded(self):
        laps = IterationTimer(10)
        laps.start(0)
        laps.end_fetch(1)
        laps.pause(2)

        assert laps.resume(22) == 20
        laps.end_iteration(23, 4, fetches_next=True)
        assert (laps.rates.iteration, laps.rates.data) == (3.0, 1.0)

    def test_unfinished_pause_ends_with_the_iteration(self):
        laps = IterationTimer(10)
        laps.start(0)
        laps.end_fetch(1)
        laps.pause(2)
        laps.end_iteration(5, 4, fetches_next=True)

        laps.resume(7)
        laps.end_fetch(8)
        laps.end_iteration(9, 4, fetches_next=True)

        assert laps.rates.iteration == (5 + 2) / 2

    def test_work_before_fetching_is_iteration_time_but_not_data_time(self):
        laps = IterationTimer(10)
        laps.start(0)
        laps.end_fetch(1)
        laps.end_iteration(2, 4, fetches_next=False)
        laps.end_fetch(8)
        laps.end_iteration(9, 4, fetches_next=True)

        assert (laps.rates.iteration, laps.rates.data) == (4.5, 1.0)

    def test_fetching_can_start_later(self):
        laps = IterationTimer(10)
        laps.start(0)
        laps.end_fetch(0)
        laps.end_iteration(1, 4, fetches_next=False)
        laps.start_fetch(5)
        laps.end_fetch(7)
        laps.end_iteration(8, 4, fetches_next=True)

        assert (laps.rates.iteration, laps.rates.data) == (4.0, 1.0)

    def test_iteration_without_an_end_of_fetching_has_no_data_time(self):
        laps = IterationTimer(1)
        laps.start(0)
        laps.end_fetch(3)
        laps.end_iteration(4, 4, fetches_next=True)
        assert laps.rates.data == 3.0

        laps.end_iteration(5, 4, fetches_next=True)

        assert laps.rates.data is None
