from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.laps import Laps

durations = st.integers(0, 1000)
iterations = st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=40)


def time_iterations(laps, iterations, now=0, samples=4):
    """Time iterations of (seconds of the pause before, of fetching, of computing), and return the end."""
    laps.begin(now)
    for pause, fetch, compute in iterations:
        laps.pause(now)
        now += pause
        laps.go_on(now)
        now += fetch
        laps.fetched(now)
        now += compute
        laps.end(now, samples, fetches_next=True)
    return now


class TestLaps:
    def test_iteration_is_timed_from_the_end_of_the_previous_one(self):
        laps = Laps(10)

        time_iterations(laps, [(0, 2, 3), (0, 4, 5)])

        assert (laps.rates.iteration, laps.rates.data) == (7.0, 3.0)

    @given(iterations, st.integers(1, 50))
    def test_means_are_over_the_window_without_the_pauses(self, iterations, size):
        laps, last = Laps(size), iterations[-size:]

        time_iterations(laps, iterations)

        assert laps.rates.iteration == sum(fetch + compute for _, fetch, compute in last) / len(last)
        assert laps.rates.data == sum(fetch for _, fetch, _ in last) / len(last)

    @given(iterations)
    def test_data_time_is_included_in_the_iteration_time(self, iterations):
        laps = Laps(100)

        time_iterations(laps, iterations)

        assert 0 <= laps.rates.data <= laps.rates.iteration

    @given(iterations, iterations)
    def test_cleared_timer_equals_a_new_one(self, before, after):
        used, new = Laps(10), Laps(10)
        now = time_iterations(used, before)

        used.clear()
        time_iterations(used, after, now)
        time_iterations(new, after)

        assert used.rates == new.rates

    def test_timer_is_true_after_the_first_iteration(self):
        laps = Laps(10)
        assert not laps

        time_iterations(laps, [(0, 1, 1)])

        assert laps

    def test_pause_inside_an_iteration_is_excluded(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(1)
        laps.pause(2)

        assert laps.go_on(22) == 20
        laps.end(23, 4, fetches_next=True)
        assert (laps.rates.iteration, laps.rates.data) == (3.0, 1.0)

    def test_unfinished_pause_ends_with_the_iteration(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(1)
        laps.pause(2)
        laps.end(5, 4, fetches_next=True)

        laps.go_on(7)
        laps.fetched(8)
        laps.end(9, 4, fetches_next=True)

        assert laps.rates.iteration == (5 + 2) / 2

    def test_work_before_fetching_is_iteration_time_but_not_data_time(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(1)
        laps.end(2, 4, fetches_next=False)
        laps.fetched(8)
        laps.end(9, 4, fetches_next=True)

        assert (laps.rates.iteration, laps.rates.data) == (4.5, 1.0)

    def test_fetching_can_start_later(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(0)
        laps.end(1, 4, fetches_next=False)
        laps.fetch_from(5)
        laps.fetched(7)
        laps.end(8, 4, fetches_next=True)

        assert (laps.rates.iteration, laps.rates.data) == (4.0, 1.0)

    def test_iteration_without_an_end_of_fetching_has_no_data_time(self):
        laps = Laps(1)
        laps.begin(0)
        laps.fetched(3)
        laps.end(4, 4, fetches_next=True)
        assert laps.rates.data == 3.0

        laps.end(5, 4, fetches_next=True)

        assert laps.rates.data is None
