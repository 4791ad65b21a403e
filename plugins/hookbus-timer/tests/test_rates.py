from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.rates import Rates, iterations_left, rates_of

seconds = st.floats(min_value=0, max_value=1e6, allow_subnormal=False)
laps = st.lists(st.tuples(seconds, st.none() | seconds, st.integers(0, 1024)), min_size=1, max_size=60)
counts = st.integers(0, 12)
limits = st.none() | st.integers(0, 40)


def left_of(done=0, max_iterations=None, epochs=0, max_epochs=None, in_epoch=0, length=None):
    return iterations_left(
        iterations_done=done,
        max_iterations=max_iterations,
        epochs_done=epochs,
        max_epochs=max_epochs,
        iterations_in_epoch=in_epoch,
        epoch_length=length,
    )


def counted(done, max_iterations, epochs, max_epochs, in_epoch, length):
    """How often a loop with these limits really goes round."""
    rounds = 0
    while (max_iterations is None or done < max_iterations) and (max_epochs is None or epochs < max_epochs):
        rounds, done, in_epoch = rounds + 1, done + 1, in_epoch + 1
        if in_epoch >= length:
            epochs, in_epoch = epochs + 1, 0
    return rounds


class TestRatesOf:
    def test_divides_totals_by_totals(self):
        rates = rates_of([(1.0, 0.5, 4), (3.0, 1.5, 4)])

        assert rates == Rates(iteration=2.0, data=1.0, iterations_per_second=0.5, samples_per_second=2.0)

    def test_knows_nothing_of_no_iterations(self):
        assert rates_of([]) == Rates()
        assert rates_of([]).named() == {}

    def test_takes_data_times_from_the_iterations_that_have_one(self):
        assert rates_of([(1.0, None, 4), (1.0, 0.25, 4), (1.0, 0.75, 4)]).data == 0.5

    def test_leaves_out_samples_that_cannot_be_counted(self):
        assert rates_of([(2.0, None, 0)]).named() == {"time/iter": 2.0, "throughput/iterations_per_second": 0.5}

    def test_gives_no_rate_where_no_time_passed(self):
        assert rates_of([(0.0, 0.0, 4)]).named() == {"time/iter": 0.0, "time/data": 0.0}

    def test_names_what_it_knows(self):
        assert rates_of([(2.0, 0.5, 8)]).named() == {
            "time/iter": 2.0,
            "time/data": 0.5,
            "throughput/iterations_per_second": 0.5,
            "throughput/samples_per_second": 4.0,
        }

    @given(laps)
    def test_means_are_exact_to_one_rounding_of_the_sum_and_one_of_the_quotient(self, laps):
        exact = float(sum((Fraction(lap[0]) for lap in laps), Fraction())) / len(laps)

        assert rates_of(laps).iteration == exact

    @given(laps, st.randoms())
    def test_does_not_depend_on_the_order_of_the_iterations(self, laps, random):
        shuffled = random.sample(laps, len(laps))

        assert rates_of(shuffled) == rates_of(laps)


class TestTimeFor:
    def test_is_so_many_times_the_mean(self):
        assert Rates(iteration=1.8).time_for(4) == pytest.approx(7.2, abs=1e-12)

    def test_is_unknown_where_pace_or_number_is(self):
        assert Rates(iteration=1.8).time_for(None) is None
        assert Rates().time_for(4) is None

    @given(laps, st.integers(0, 10**6), st.integers(0, 10**6))
    def test_is_never_negative_and_grows_with_what_is_left(self, laps, few, more):
        rates = rates_of(laps)

        assert 0 <= rates.time_for(few) <= rates.time_for(few + more)


class TestIterationsLeft:
    def test_counts_down_to_the_limit_in_iterations(self):
        assert left_of(done=90, max_iterations=100) == 10

    def test_counts_down_to_the_limit_in_epochs_inside_an_epoch(self):
        assert left_of(done=11, epochs=2, max_epochs=3, in_epoch=1, length=5) == 4

    def test_takes_the_limit_that_comes_first(self):
        assert left_of(done=3, max_iterations=8, max_epochs=4, in_epoch=3, length=5) == 5
        assert left_of(done=3, max_iterations=80, max_epochs=4, in_epoch=3, length=5) == 17

    def test_is_unknown_without_any_limit(self):
        assert left_of(done=5, in_epoch=5, length=10) is None

    def test_is_unknown_in_epochs_of_unknown_length(self):
        assert left_of(done=5, max_epochs=3, in_epoch=5) is None

    def test_needs_no_length_where_iterations_are_limited(self):
        assert left_of(done=2, max_iterations=6, max_epochs=3, in_epoch=2) == 4

    def test_is_nothing_once_the_limit_is_passed(self):
        assert left_of(done=120, max_iterations=100) == 0
        assert left_of(done=50, epochs=5, max_epochs=3, length=10) == 0

    def test_an_epoch_that_is_longer_than_the_ones_before_leaves_only_those_after_it(self):
        assert left_of(done=17, epochs=1, max_epochs=3, in_epoch=12, length=5) == 5

    @given(counts, limits, counts, limits, st.integers(1, 9), st.data())
    def test_is_how_often_the_loop_goes_round(self, done, max_iterations, epochs, max_epochs, length, data):
        in_epoch = data.draw(st.integers(0, length - 1))
        if max_iterations is None and max_epochs is None:
            max_epochs = epochs

        expected = counted(done, max_iterations, epochs, max_epochs, in_epoch, length)

        assert left_of(done, max_iterations, epochs, max_epochs, in_epoch, length) == expected

    @given(counts, limits, counts, limits, counts, st.none() | st.integers(1, 9))
    def test_never_grows_within_an_epoch(self, done, max_iterations, epochs, max_epochs, in_epoch, length):
        now = left_of(done, max_iterations, epochs, max_epochs, in_epoch, length)
        then = left_of(done + 1, max_iterations, epochs, max_epochs, in_epoch + 1, length)

        assert (now is None and then is None) or 0 <= then <= now
