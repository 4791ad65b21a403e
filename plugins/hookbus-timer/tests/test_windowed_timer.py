from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.windowed_timer import WindowedTimer

durations = st.integers(0, 1000)
iterations = st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=40)


def time_iterations(timer, iterations, now=0, samples=4):
    """Time iterations of (seconds of the pause before, of fetching, of computing), and return the end."""
    timer.start(now)
    for pause, fetch, compute in iterations:
        timer.pause(now)
        now += pause
        timer.resume(now)
        now += fetch
        timer.end_fetch(now)
        now += compute
        timer.end_iteration(now, samples, fetches_next=True)
    return now


class TestLaps:
    def test_iteration_is_timed_from_the_end_of_the_previous_one(self):
        timer = WindowedTimer(10)

        time_iterations(timer, [(0, 2, 3), (0, 4, 5)])

        assert (timer.rates.iteration, timer.rates.data) == (7.0, 3.0)

    @given(iterations, st.integers(1, 50))
    def test_means_are_over_the_window_without_the_pauses(self, iterations, size):
        timer, last = WindowedTimer(size), iterations[-size:]

        time_iterations(timer, iterations)

        assert timer.rates.iteration == sum(fetch + compute for _, fetch, compute in last) / len(last)
        assert timer.rates.data == sum(fetch for _, fetch, _ in last) / len(last)

    @given(iterations)
    def test_data_time_is_included_in_the_iteration_time(self, iterations):
        timer = WindowedTimer(100)

        time_iterations(timer, iterations)

        assert 0 <= timer.rates.data <= timer.rates.iteration

    @given(iterations, iterations)
    def test_cleared_timer_equals_a_new_one(self, before, after):
        used, new = WindowedTimer(10), WindowedTimer(10)
        now = time_iterations(used, before)

        used.clear()
        time_iterations(used, after, now)
        time_iterations(new, after)

        assert used.rates == new.rates

    def test_timer_is_true_after_the_first_iteration(self):
        timer = WindowedTimer(10)
        assert not timer

        time_iterations(timer, [(0, 1, 1)])

        assert timer

    def test_pause_inside_an_iteration_is_excluded(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.pause(2)

        assert timer.resume(22) == 20
        timer.end_iteration(23, 4, fetches_next=True)
        assert (timer.rates.iteration, timer.rates.data) == (3.0, 1.0)

    def test_unfinished_pause_ends_with_the_iteration(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.pause(2)
        timer.end_iteration(5, 4, fetches_next=True)

        timer.resume(7)
        timer.end_fetch(8)
        timer.end_iteration(9, 4, fetches_next=True)

        assert timer.rates.iteration == (5 + 2) / 2

    def test_work_before_fetching_is_iteration_time_but_not_data_time(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.end_iteration(2, 4, fetches_next=False)
        timer.end_fetch(8)
        timer.end_iteration(9, 4, fetches_next=True)

        assert (timer.rates.iteration, timer.rates.data) == (4.5, 1.0)

    def test_fetching_can_start_later(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(0)
        timer.end_iteration(1, 4, fetches_next=False)
        timer.start_fetch(5)
        timer.end_fetch(7)
        timer.end_iteration(8, 4, fetches_next=True)

        assert (timer.rates.iteration, timer.rates.data) == (4.0, 1.0)

    def test_iteration_without_an_end_of_fetching_has_no_data_time(self):
        timer = WindowedTimer(1)
        timer.start(0)
        timer.end_fetch(3)
        timer.end_iteration(4, 4, fetches_next=True)
        assert timer.rates.data == 3.0

        timer.end_iteration(5, 4, fetches_next=True)

        assert timer.rates.data is None
