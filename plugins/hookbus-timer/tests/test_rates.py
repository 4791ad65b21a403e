from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.windowed_timer import Rates, compute_rates

seconds = st.floats(min_value=0, max_value=1e6, allow_subnormal=False)
laps = st.lists(st.tuples(seconds, st.none() | seconds, st.integers(0, 1024)), min_size=1, max_size=60)


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
