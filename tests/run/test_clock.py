"""Tests of the clock of a run."""

from __future__ import annotations

import pytest
import torch

from hookbus._events.points import Unit
from hookbus._run.clock import Clock

# -- counts --------------------------------------------------------------------------------------------


def test_counts_advance_before_after_events_and_indices_are_current() -> None:
    clock = Clock()
    clock.begin_epoch()
    clock.begin_iter([0, 0, 0])
    assert (clock.iters_done, clock.iter, clock.epoch) == (0, 0, 0)
    clock.end_iter([0, 0, 0])
    assert (clock.iters_done, clock.iter, clock.steps_done) == (1, 0, 1)
    clock.begin_iter([])
    assert (clock.iters_done, clock.iter) == (1, 1)
    clock.end_iter([])
    clock.end_epoch()
    assert (clock.epochs_done, clock.epoch, clock.epoch_complete) == (1, 0, True)
    clock.begin_epoch()
    assert (clock.epochs_done, clock.epoch, clock.epoch_complete) == (1, 1, False)


def test_ending_an_epoch_twice_counts_it_once() -> None:
    clock = Clock()
    clock.begin_epoch()
    clock.begin_epoch()
    clock.end_epoch()
    clock.end_epoch()
    assert clock.epochs_done == 1


def test_truncated_epoch_is_not_counted_and_stays_open() -> None:
    clock = Clock()
    clock.epoch_length = 3
    clock.begin_epoch()
    clock.end_iter(None)
    clock.truncate_epoch()
    clock.end_epoch()
    assert (clock.epochs_done, clock.epoch_complete, clock.epoch_open) == (0, False, True)


def test_stop_after_the_last_batch_does_not_truncate_the_epoch() -> None:
    clock = Clock()
    clock.epoch_length = 2
    clock.begin_epoch()
    clock.end_iter(None)
    clock.end_iter(None)
    clock.truncate_epoch()
    clock.end_epoch()
    assert (clock.epochs_done, clock.epoch_complete) == (1, True)


def test_epoch_that_is_completed_after_a_stop_is_counted() -> None:
    clock = Clock()
    clock.epoch_length = 3
    clock.begin_epoch()
    clock.end_iter(None)
    clock.truncate_epoch()
    clock.end_iter(None)
    assert clock.epoch_truncated
    clock.end_iter(None)
    clock.end_epoch()
    assert (clock.epochs_done, clock.epoch_complete, clock.epoch_truncated) == (1, True, False)


def test_iteration_limit_truncates_the_epoch() -> None:
    clock = Clock()
    clock.max_iters = 2
    clock.begin_epoch()
    clock.end_iter(None)
    assert not clock.limit_reached
    clock.end_iter(None)
    assert clock.limit_reached
    assert clock.epoch_truncated


def test_stepped_is_true_until_the_next_iteration_starts() -> None:
    clock = Clock()
    clock.counts_iterations = False
    seen = []
    for i in range(4):
        clock.begin_iter(None)
        assert not clock.stepped
        if i % 2:
            clock.count_step()
        clock.end_iter(None)
        seen.append((clock.stepped, clock.steps_done, clock.iters_since_step))
    assert seen == [(False, 0, 1), (True, 1, 0), (False, 1, 1), (True, 2, 0)]


def test_samples_are_counted_from_the_event_with_the_batch() -> None:
    clock = Clock()
    clock.begin_iter(torch.zeros(5, 2))
    clock.end_iter(None)
    clock.begin_iter(None)
    clock.end_iter(torch.zeros(3, 2))
    clock.end_iter(torch.zeros(4))
    assert clock.samples_done == 5 + 3 + 4


def test_training_time_elapses_between_start_and_stop_only() -> None:
    now = 100.0
    clock = Clock(timer=lambda: now)
    assert clock.seconds == 0
    clock.start()
    now = 103.0
    clock.start()
    now = 105.0
    assert clock.seconds == 5
    clock.stop()
    now = 999.0
    assert clock.seconds == 5
    clock.start()
    now = 1000.5
    assert clock.seconds == 6.5


def test_state_contains_builtin_types_and_restores_another_clock() -> None:
    now = 0.0
    clock = Clock(timer=lambda: now)
    clock.counts_iterations = False
    clock.start()
    clock.begin_epoch()
    for i in range(5):
        clock.begin_iter(torch.zeros(2))
        now += 1.5
        if i % 2:
            clock.count_step()
        clock.end_iter(None)
    state = clock.state_dict()
    assert all(type(value) in (int, float, bool) for value in state.values())
    other = Clock(timer=lambda: 50.0)
    other.load_state_dict(state)
    assert (other.epoch, other.iter, other.iters_done, other.steps_done, other.samples_done) == (0, 4, 5, 2, 10)
    assert (other.iters_since_step, other.seconds, other.epoch_open) == (1, 7.5, True)
    assert other.state_dict() == state


# -- limits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "iterations", "length", "limits"),
    [
        (None, None, None, {"epoch": None, "iter": None}),
        (3, None, None, {"epoch": 3, "iter": None}),
        (3, None, 4, {"epoch": 3, "iter": 12}),
        (None, 7, 4, {"epoch": None, "iter": 7}),
        (3, 7, 4, {"epoch": 3, "iter": 7}),
        (3, 70, 4, {"epoch": 3, "iter": 12}),
        (3, 70, None, {"epoch": 3, "iter": 70}),
    ],
)
def test_limit_is_known_in_epochs_and_iterations(
    epochs: int | None, iterations: int | None, length: int | None, limits: dict[Unit, int | None]
) -> None:
    clock = Clock()
    clock.max_epochs, clock.max_iters, clock.epoch_length = epochs, iterations, length
    others: dict[Unit, int | None] = {"step": None, "sample": None, "seconds": None, "batch": None}
    assert {unit: clock.limit(unit) for unit in (*limits, *others)} == {**limits, **others}


def test_limit_decreases_when_an_epoch_ends_early() -> None:
    clock = Clock()
    clock.max_epochs, clock.epoch_length = 3, 10
    clock.begin_epoch()
    for _ in range(4):
        clock.end_iter(None)
    assert clock.limit("iter") == 30
    clock.end_epoch()
    assert clock.limit("iter") == 24
    clock.begin_epoch()
    assert clock.limit("iter") == 24


def test_synchronized_seconds_replace_the_timer() -> None:
    now = iter([0.0, 100.0])
    clock = Clock(timer=lambda: next(now, 100.0))
    clock.start()
    clock.synced_seconds = 7
    clock.count_seconds()
    clock.begin_iter(None)

    assert (clock.seconds, clock.seconds_seen, clock.current("seconds")) == (100.0, 7, 8)


def test_estimates_use_the_length_of_the_last_epoch() -> None:
    clock = Clock()
    clock.max_epochs, clock.epoch_length = 3, 10
    assert (clock.expected_epoch_length, clock.expected_last_iter) == (10, 30)

    clock.observed_epoch_length, clock.epochs_done, clock.iters_done = 4, 1, 4
    assert (clock.expected_epoch_length, clock.expected_last_iter, clock.limit("iter")) == (4, 12, 24)

    clock.iters_done, clock.epoch_open, clock.epoch_first_iter = 15, True, 4
    assert clock.expected_last_iter == 15  # the epoch is longer than the last one

    clock.max_iters = 8
    clock.iters_done = 5
    assert clock.expected_last_iter == 8


@pytest.mark.parametrize(("exhausted", "truncated"), [(True, False), (False, True), (None, True)])
def test_epoch_is_truncated_unless_its_data_is_exhausted(exhausted: bool | None, truncated: bool) -> None:
    clock = Clock()
    clock.epoch_length = 10
    clock.is_data_exhausted = lambda: exhausted
    clock.begin_epoch()
    clock.end_iter(None)
    clock.truncate_epoch()

    assert clock.epoch_truncated is truncated
