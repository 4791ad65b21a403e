from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.windowed_timer import WindowedTimer, compute_rates

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

        assert (timer.rates["time/iter"], timer.rates["time/data"]) == (7.0, 3.0)

    @given(iterations, st.integers(1, 50))
    def test_means_are_over_the_window_without_the_pauses(self, iterations, size):
        timer, last = WindowedTimer(size), iterations[-size:]

        time_iterations(timer, iterations)

        assert timer.rates["time/iter"] == sum(fetch + compute for _, fetch, compute in last) / len(last)
        assert timer.rates["time/data"] == sum(fetch for _, fetch, _ in last) / len(last)

    @given(iterations)
    def test_data_time_is_included_in_the_iteration_time(self, iterations):
        timer = WindowedTimer(100)

        time_iterations(timer, iterations)

        assert 0 <= timer.rates["time/data"] <= timer.rates["time/iter"]

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
        assert (timer.rates["time/iter"], timer.rates["time/data"]) == (3.0, 1.0)

    def test_unfinished_pause_ends_with_the_iteration(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.pause(2)
        timer.end_iteration(5, 4, fetches_next=True)

        timer.resume(7)
        timer.end_fetch(8)
        timer.end_iteration(9, 4, fetches_next=True)

        assert timer.rates["time/iter"] == (5 + 2) / 2

    def test_work_before_fetching_is_iteration_time_but_not_data_time(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(1)
        timer.end_iteration(2, 4, fetches_next=False)
        timer.end_fetch(8)
        timer.end_iteration(9, 4, fetches_next=True)

        assert (timer.rates["time/iter"], timer.rates["time/data"]) == (4.5, 1.0)

    def test_fetching_can_start_later(self):
        timer = WindowedTimer(10)
        timer.start(0)
        timer.end_fetch(0)
        timer.end_iteration(1, 4, fetches_next=False)
        timer.start_fetch(5)
        timer.end_fetch(7)
        timer.end_iteration(8, 4, fetches_next=True)

        assert (timer.rates["time/iter"], timer.rates["time/data"]) == (4.0, 1.0)

    def test_iteration_without_an_end_of_fetching_has_no_data_time(self):
        timer = WindowedTimer(1)
        timer.start(0)
        timer.end_fetch(3)
        timer.end_iteration(4, 4, fetches_next=True)
        assert timer.rates["time/data"] == 3.0

        timer.end_iteration(5, 4, fetches_next=True)

        assert "time/data" not in timer.rates


seconds = st.floats(min_value=0, max_value=1e6, allow_subnormal=False)
laps = st.lists(st.tuples(seconds, st.none() | seconds, st.integers(0, 1024)), min_size=1, max_size=60)


class TestRatesOf:
    def test_rates_are_quotients_of_totals(self):
        rates = compute_rates([(1.0, 0.5, 4), (3.0, 1.5, 4)])

        assert rates == {
            "time/iter": 2.0,
            "time/data": 1.0,
            "throughput/iterations_per_second": 0.5,
            "throughput/samples_per_second": 2.0,
        }

    def test_rates_of_no_iterations_are_unknown(self):
        assert compute_rates([]) == {}

    def test_data_time_is_the_mean_of_the_known_data_times(self):
        assert compute_rates([(1.0, None, 4), (1.0, 0.25, 4), (1.0, 0.75, 4)])["time/data"] == 0.5

    def test_uncounted_samples_are_omitted(self):
        assert compute_rates([(2.0, None, 0)]) == {"time/iter": 2.0, "throughput/iterations_per_second": 0.5}

    def test_zero_duration_has_no_rate(self):
        assert compute_rates([(0.0, 0.0, 4)]) == {"time/iter": 0.0, "time/data": 0.0}

    def test_known_values_have_full_metric_names(self):
        assert compute_rates([(2.0, 0.5, 8)]) == {
            "time/iter": 2.0,
            "time/data": 0.5,
            "throughput/iterations_per_second": 0.5,
            "throughput/samples_per_second": 4.0,
        }

    @given(laps)
    def test_means_are_exact_up_to_two_roundings(self, laps):
        exact = float(sum((Fraction(lap[0]) for lap in laps), Fraction())) / len(laps)

        assert compute_rates(laps)["time/iter"] == exact

    @given(laps, st.randoms())
    def test_rates_do_not_depend_on_the_order_of_the_iterations(self, laps, random):
        shuffled = random.sample(laps, len(laps))

        assert compute_rates(shuffled) == compute_rates(laps)
