from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.laps import Laps

whole = st.integers(0, 1000)
rounds = st.lists(st.tuples(whole, whole, whole), min_size=1, max_size=40)


def timed(laps, rounds, now=0, samples=4):
    """Go through rounds of (seconds of pause before it, of fetching, of computing)."""
    laps.begin(now)
    for pause, fetch, compute in rounds:
        laps.pause(now)
        now += pause
        laps.go_on(now)
        now += fetch
        laps.fetched(now)
        now += compute
        laps.end(now, samples, fetches_next=True)
    return now


class TestLaps:
    def test_times_an_iteration_from_the_end_of_the_one_before(self):
        laps = Laps(10)

        timed(laps, [(0, 2, 3), (0, 4, 5)])

        assert (laps.rates.iteration, laps.rates.data) == (7.0, 3.0)

    @given(rounds, st.integers(1, 50))
    def test_means_are_over_the_last_iterations_without_the_pauses(self, rounds, size):
        laps, last = Laps(size), rounds[-size:]

        timed(laps, rounds)

        assert laps.rates.iteration == sum(fetch + compute for _, fetch, compute in last) / len(last)
        assert laps.rates.data == sum(fetch for _, fetch, _ in last) / len(last)

    @given(rounds)
    def test_waiting_for_data_is_a_part_of_the_iteration(self, rounds):
        laps = Laps(100)

        timed(laps, rounds)

        assert 0 <= laps.rates.data <= laps.rates.iteration

    @given(rounds, rounds)
    def test_a_cleared_stopwatch_is_as_a_new_one(self, before, after):
        used, new = Laps(10), Laps(10)
        now = timed(used, before)

        used.clear()
        timed(used, after, now)
        timed(new, after)

        assert used.rates == new.rates

    def test_is_true_once_an_iteration_was_timed(self):
        laps = Laps(10)
        assert not laps

        timed(laps, [(0, 1, 1)])

        assert laps

    def test_a_pause_inside_an_iteration_does_not_count(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(1)
        laps.pause(2)

        assert laps.go_on(22) == 20
        laps.end(23, 4, fetches_next=True)
        assert (laps.rates.iteration, laps.rates.data) == (3.0, 1.0)

    def test_a_pause_that_was_left_open_ends_with_the_iteration(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(1)
        laps.pause(2)
        laps.end(5, 4, fetches_next=True)

        laps.go_on(7)
        laps.fetched(8)
        laps.end(9, 4, fetches_next=True)

        assert laps.rates.iteration == (5 + 2) / 2

    def test_other_work_before_fetching_belongs_to_the_iteration_and_is_no_waiting(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(1)
        laps.end(2, 4, fetches_next=False)
        laps.fetched(8)
        laps.end(9, 4, fetches_next=True)

        assert (laps.rates.iteration, laps.rates.data) == (4.5, 1.0)

    def test_fetching_may_begin_later(self):
        laps = Laps(10)
        laps.begin(0)
        laps.fetched(0)
        laps.end(1, 4, fetches_next=False)
        laps.fetch_from(5)
        laps.fetched(7)
        laps.end(8, 4, fetches_next=True)

        assert (laps.rates.iteration, laps.rates.data) == (4.0, 1.0)

    def test_an_iteration_that_never_says_that_data_is_there_has_no_data_time(self):
        laps = Laps(1)
        laps.begin(0)
        laps.fetched(3)
        laps.end(4, 4, fetches_next=True)
        assert laps.rates.data == 3.0

        laps.end(5, 4, fetches_next=True)

        assert laps.rates.data is None
