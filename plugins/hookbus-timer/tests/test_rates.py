from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.rates import Rates, compute_rates, remaining_iterations

seconds = st.floats(min_value=0, max_value=1e6, allow_subnormal=False)
laps = st.lists(st.tuples(seconds, st.none() | seconds, st.integers(0, 1024)), min_size=1, max_size=60)
counts = st.integers(0, 12)
limits = st.none() | st.integers(0, 40)


def compute_remaining(done=0, max_iterations=None, epochs=0, max_epochs=None, in_epoch=0, length=None):
    return remaining_iterations(
        iterations_done=done,
        max_iterations=max_iterations,
        epochs_done=epochs,
        max_epochs=max_epochs,
        iterations_in_epoch=in_epoch,
        epoch_length=length,
    )


def simulate(done, max_iterations, epochs, max_epochs, in_epoch, length):
    """Return the number of iterations of a loop with these limits."""
    count = 0
    while (max_iterations is None or done < max_iterations) and (max_epochs is None or epochs < max_epochs):
        count, done, in_epoch = count + 1, done + 1, in_epoch + 1
        if in_epoch >= length:
            epochs, in_epoch = epochs + 1, 0
    return count


class TestRatesOf:
    def test_rates_are_quotients_of_totals(self):
        rates = compute_rates([(1.0, 0.5, 4), (3.0, 1.5, 4)])

        assert rates == Rates(iteration=2.0, data=1.0, iterations_per_second=0.5, samples_per_second=2.0)

    def test_rates_of_no_iterations_are_unknown(self):
        assert compute_rates([]) == Rates()
        assert compute_rates([]).to_dict() == {}

    def test_data_time_is_the_mean_of_the_known_data_times(self):
        assert compute_rates([(1.0, None, 4), (1.0, 0.25, 4), (1.0, 0.75, 4)]).data == 0.5

    def test_uncounted_samples_are_omitted(self):
        assert compute_rates([(2.0, None, 0)]).to_dict() == {"time/iter": 2.0, "throughput/iterations_per_second": 0.5}

    def test_zero_duration_has_no_rate(self):
        assert compute_rates([(0.0, 0.0, 4)]).to_dict() == {"time/iter": 0.0, "time/data": 0.0}

    def test_known_values_have_full_metric_names(self):
        assert compute_rates([(2.0, 0.5, 8)]).to_dict() == {
            "time/iter": 2.0,
            "time/data": 0.5,
            "throughput/iterations_per_second": 0.5,
            "throughput/samples_per_second": 4.0,
        }

    @given(laps)
    def test_means_are_exact_up_to_two_roundings(self, laps):
        exact = float(sum((Fraction(lap[0]) for lap in laps), Fraction())) / len(laps)

        assert compute_rates(laps).iteration == exact

    @given(laps, st.randoms())
    def test_rates_do_not_depend_on_the_order_of_the_iterations(self, laps, random):
        shuffled = random.sample(laps, len(laps))

        assert compute_rates(shuffled) == compute_rates(laps)


class TestTimeFor:
    def test_estimate_is_the_number_of_iterations_times_the_mean(self):
        assert Rates(iteration=1.8).estimate_seconds(4) == pytest.approx(7.2, abs=1e-12)

    def test_estimate_is_none_if_mean_or_number_is_unknown(self):
        assert Rates(iteration=1.8).estimate_seconds(None) is None
        assert Rates().estimate_seconds(4) is None

    @given(laps, st.integers(0, 10**6), st.integers(0, 10**6))
    def test_estimate_is_nonnegative_and_increases_with_the_iterations(self, laps, few, more):
        rates = compute_rates(laps)

        assert 0 <= rates.estimate_seconds(few) <= rates.estimate_seconds(few + more)


class TestIterationsLeft:
    def test_remaining_iterations_count_down_to_the_limit_in_iterations(self):
        assert compute_remaining(done=90, max_iterations=100) == 10

    def test_remaining_iterations_count_down_to_the_limit_in_epochs(self):
        assert compute_remaining(done=11, epochs=2, max_epochs=3, in_epoch=1, length=5) == 4

    def test_remaining_iterations_are_those_to_the_first_limit(self):
        assert compute_remaining(done=3, max_iterations=8, max_epochs=4, in_epoch=3, length=5) == 5
        assert compute_remaining(done=3, max_iterations=80, max_epochs=4, in_epoch=3, length=5) == 17

    def test_remaining_iterations_are_none_without_a_limit(self):
        assert compute_remaining(done=5, in_epoch=5, length=10) is None

    def test_remaining_iterations_are_none_for_epochs_of_unknown_length(self):
        assert compute_remaining(done=5, max_epochs=3, in_epoch=5) is None

    def test_limit_in_iterations_requires_no_epoch_length(self):
        assert compute_remaining(done=2, max_iterations=6, max_epochs=3, in_epoch=2) == 4

    def test_remaining_iterations_are_zero_after_the_limit(self):
        assert compute_remaining(done=120, max_iterations=100) == 0
        assert compute_remaining(done=50, epochs=5, max_epochs=3, length=10) == 0

    def test_current_epoch_that_exceeds_the_length_is_counted_as_complete(self):
        assert compute_remaining(done=17, epochs=1, max_epochs=3, in_epoch=12, length=5) == 5

    @given(counts, limits, counts, limits, st.integers(1, 9), st.data())
    def test_remaining_iterations_equal_those_of_a_simulated_loop(
        self, done, max_iterations, epochs, max_epochs, length, data
    ):
        in_epoch = data.draw(st.integers(0, length - 1))
        if max_iterations is None and max_epochs is None:
            max_epochs = epochs

        expected = simulate(done, max_iterations, epochs, max_epochs, in_epoch, length)

        assert compute_remaining(done, max_iterations, epochs, max_epochs, in_epoch, length) == expected

    @given(counts, limits, counts, limits, counts, st.none() | st.integers(1, 9))
    def test_remaining_iterations_never_increase_within_an_epoch(
        self, done, max_iterations, epochs, max_epochs, in_epoch, length
    ):
        now = compute_remaining(done, max_iterations, epochs, max_epochs, in_epoch, length)
        then = compute_remaining(done + 1, max_iterations, epochs, max_epochs, in_epoch + 1, length)

        assert (now is None and then is None) or 0 <= then <= now
