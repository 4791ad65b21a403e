import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.epoch_timer import EpochTimer

durations = st.integers(0, 10_000)
epoch_parts = st.lists(st.lists(durations, min_size=1, max_size=4), min_size=1, max_size=8)
"""Durations of the parts of each epoch, between which the training was interrupted."""


def start_timer(now=0.0, epochs=0, iterations=0, at_boundary=True):
    times = EpochTimer()
    times.start(now, epochs, iterations, at_boundary=at_boundary)
    return times


class TestEpochTimes:
    def test_timer_returns_the_duration_of_each_epoch_and_the_mean(self):
        times = start_timer(100)

        assert times.end_epoch(110, 1, 5) == 10
        assert times.end_epoch(130, 2, 10) == 20
        assert (times.mean, times.epochs, times.iterations, times.seconds) == (15, 2, 10, 30)

    def test_mean_is_none_before_the_end_of_the_first_epoch(self):
        assert start_timer().mean is None

    def test_interval_of_multiple_epochs_returns_their_mean(self):
        times = start_timer(0, epochs=4, iterations=20)

        assert times.end_epoch(30, 7, 35) == 10
        assert (times.epochs, times.iterations) == (3, 15)

    def test_epoch_whose_start_was_not_timed_is_excluded(self):
        times = start_timer(0, epochs=2, iterations=13, at_boundary=False)

        assert times.end_epoch(1, 3, 15) is None
        assert times.end_epoch(11, 4, 20) == 10
        assert times.mean == 10

    def test_end_without_a_new_epoch_is_not_counted(self):
        times = start_timer()
        times.end_epoch(10, 1, 5)

        assert times.end_epoch(11, 1, 5) is None
        assert times.mean == 10

    def test_skipped_time_is_excluded(self):
        times = start_timer(0)
        times.start(60, 0, 0, at_boundary=True)

        assert times.end_epoch(70, 1, 5) == 10

    def test_second_stop_is_a_no_op(self):
        times = start_timer(0)
        times.stop(4)
        times.stop(9)
        times.start(100, 0, 3, at_boundary=False)

        assert times.end_epoch(106, 1, 5) == 10

    @given(epoch_parts, durations)
    def test_mean_equals_that_of_an_uninterrupted_run(self, epochs, downtime):
        now, times, iterations = 0, EpochTimer(), 0
        for epoch, parts in enumerate(epochs):
            for i, part in enumerate(parts):
                resumed = EpochTimer()
                resumed.load_state_dict(times.state_dict(now))
                times, now = resumed, now + downtime
                times.start(now, epoch, iterations, at_boundary=i == 0)
                now, iterations = now + part, iterations + 1
                if i < len(parts) - 1:
                    times.stop(now)
            assert times.end_epoch(now, epoch + 1, iterations) == sum(parts)

        assert times.mean == sum(map(sum, epochs)) / len(epochs)
        assert times.iterations == sum(map(len, epochs))

    def test_state_is_unchanged_by_a_round_trip(self):
        times = start_timer(3.5, epochs=2, iterations=11, at_boundary=False)
        state = times.state_dict(5)
        loaded = EpochTimer()

        loaded.load_state_dict(state)

        assert state["spent"] == 1.5
        assert loaded.state_dict(1000) == state


class TestRemaining:
    @pytest.fixture
    def times(self):
        times = start_timer()
        times.end_epoch(10, 1, 5)
        times.end_epoch(30, 2, 10)
        return times

    def test_remaining_time_is_epochs_times_the_mean(self, times):
        assert times.estimate_remaining(epochs=3, iterations=None) == 45

    def test_remaining_time_is_iterations_times_their_mean(self, times):
        assert times.estimate_remaining(epochs=None, iterations=4) == 12

    def test_remaining_time_is_that_of_the_first_limit(self, times):
        assert times.estimate_remaining(epochs=3, iterations=4) == 12
        assert times.estimate_remaining(epochs=3, iterations=100) == 45

    def test_remaining_time_is_none_without_a_limit(self, times):
        assert times.estimate_remaining(epochs=None, iterations=None) is None

    def test_remaining_time_is_none_before_the_end_of_the_first_epoch(self):
        assert start_timer().estimate_remaining(epochs=3, iterations=15) is None

    def test_remaining_time_is_zero_after_the_limit(self, times):
        assert times.estimate_remaining(epochs=-1, iterations=None) == 0
        assert times.estimate_remaining(epochs=None, iterations=-5) == 0

    @given(st.lists(durations, min_size=1, max_size=20), st.integers(-5, 100), st.integers(0, 100))
    def test_remaining_time_is_nonnegative_and_increases_with_the_epochs(self, seconds, few, more):
        now, times = 0, start_timer()
        for epoch, duration in enumerate(seconds, 1):
            now += duration
            times.end_epoch(now, epoch, epoch)

        assert (
            0
            <= times.estimate_remaining(epochs=few, iterations=None)
            <= times.estimate_remaining(epochs=few + more, iterations=None)
        )
