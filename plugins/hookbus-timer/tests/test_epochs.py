import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.epochs import EpochTimes

whole = st.integers(0, 10_000)
pieces = st.lists(st.lists(whole, min_size=1, max_size=4), min_size=1, max_size=8)
"""The time of each epoch, in the pieces between which it was interrupted."""


def started(now=0.0, epochs=0, iterations=0, at_border=True):
    times = EpochTimes()
    times.start(now, epochs, iterations, at_border=at_border)
    return times


class TestEpochTimes:
    def test_gives_the_time_of_each_epoch_and_the_mean(self):
        times = started(100)

        assert times.end_epoch(110, 1, 5) == 10
        assert times.end_epoch(130, 2, 10) == 20
        assert (times.mean, times.epochs, times.iterations, times.seconds) == (15, 2, 10, 30)

    def test_has_no_mean_before_the_first_epoch_is_complete(self):
        assert started().mean is None

    def test_gives_the_mean_of_several_epochs_that_end_together(self):
        times = started(0, epochs=4, iterations=20)

        assert times.end_epoch(30, 7, 35) == 10
        assert (times.epochs, times.iterations) == (3, 15)

    def test_leaves_out_an_epoch_whose_beginning_it_did_not_see(self):
        times = started(0, epochs=2, iterations=13, at_border=False)

        assert times.end_epoch(1, 3, 15) is None
        assert times.end_epoch(11, 4, 20) == 10
        assert times.mean == 10

    def test_an_end_without_a_new_epoch_counts_nothing(self):
        times = started()
        times.end_epoch(10, 1, 5)

        assert times.end_epoch(11, 1, 5) is None
        assert times.mean == 10

    def test_what_is_skipped_does_not_count(self):
        times = started(0)
        times.skip(60)

        assert times.end_epoch(70, 1, 5) == 10

    def test_may_be_stopped_twice(self):
        times = started(0)
        times.stop(4)
        times.stop(9)
        times.start(100, 0, 3, at_border=False)

        assert times.end_epoch(106, 1, 5) == 10

    @given(pieces, whole)
    def test_the_mean_is_that_of_a_run_that_was_never_interrupted(self, epochs, down):
        now, times, iterations = 0, EpochTimes(), 0
        for number, parts in enumerate(epochs):
            for i, part in enumerate(parts):
                resumed = EpochTimes()
                resumed.load_state_dict(times.state_dict(now))
                times, now = resumed, now + down
                times.start(now, number, iterations, at_border=i == 0)
                now, iterations = now + part, iterations + 1
                if i < len(parts) - 1:
                    times.stop(now)
            assert times.end_epoch(now, number + 1, iterations) == sum(parts)

        assert times.mean == sum(map(sum, epochs)) / len(epochs)
        assert times.iterations == sum(map(len, epochs))

    def test_the_state_is_the_same_after_loading(self):
        times = started(3.5, epochs=2, iterations=11, at_border=False)
        state = times.state_dict(5)
        loaded = EpochTimes()

        loaded.load_state_dict(state)

        assert state["spent"] == 1.5
        assert loaded.state_dict(1000) == state


class TestRemaining:
    @pytest.fixture
    def times(self):
        times = started()
        times.end_epoch(10, 1, 5)
        times.end_epoch(30, 2, 10)
        return times

    def test_is_epochs_times_the_mean(self, times):
        assert times.remaining(epochs=3, iterations=None) == 45

    def test_is_iterations_times_their_mean(self, times):
        assert times.remaining(epochs=None, iterations=4) == 12

    def test_takes_the_limit_that_comes_first(self, times):
        assert times.remaining(epochs=3, iterations=4) == 12
        assert times.remaining(epochs=3, iterations=100) == 45

    def test_is_unknown_without_a_limit(self, times):
        assert times.remaining(epochs=None, iterations=None) is None

    def test_is_unknown_before_the_first_epoch_is_complete(self):
        assert started().remaining(epochs=3, iterations=15) is None

    def test_is_nothing_once_the_limit_is_passed(self, times):
        assert times.remaining(epochs=-1, iterations=None) == 0
        assert times.remaining(epochs=None, iterations=-5) == 0

    @given(st.lists(whole, min_size=1, max_size=20), st.integers(-5, 100), st.integers(0, 100))
    def test_is_never_negative_and_grows_with_what_is_left(self, seconds, few, more):
        now, times = 0, started()
        for number, passed in enumerate(seconds, 1):
            now += passed
            times.end_epoch(now, number, number)

        assert 0 <= times.remaining(epochs=few, iterations=None) <= times.remaining(epochs=few + more, iterations=None)
