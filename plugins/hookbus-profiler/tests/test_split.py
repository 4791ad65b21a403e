import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_profiler.split import OTHER, WAITING, Split

POINTS = ["before_train_iter", "after_forward", "after_backward", "before_optimizer_step", "after_optimizer_step"]
SECOND = 10**9


class Steps:
    """A clock that the test sets; a mark may be unknown for a while."""

    def __init__(self):
        self.now, self.known = 0.0, True

    def mark(self):
        return self.now

    def between(self, first, second):
        return second - first if self.known else None


def walk(split, clock, steps, hooks=0):
    """Mark points after so many seconds each. Returns the nanoseconds of hooks at the end."""
    for point, seconds, *in_hooks in steps:
        clock.now += seconds
        hooks += int(sum(in_hooks) * SECOND)
        split.mark(point, hooks)
    return hooks


def full(data, forward, backward, clip, update, rest):
    return list(zip([*POINTS, "after_train_iter"], [data, forward, backward, clip, update, rest], strict=True))


def test_each_piece_belongs_to_its_part_and_they_add_up_to_the_whole():
    split = Split(clock := Steps())
    split.mark("before_train_epoch", 0)
    walk(split, clock, full(5, 1, 2, 0.25, 0.5, 0.125))
    split.end_iteration({}, split.plain)
    assert dict(split.plain.parts) == {"data": 5, "forward": 1, "backward": 2, "optimizer": 0.75, OTHER: 0.125}
    assert (split.plain.seconds, split.plain.iterations) == (8.875, 1)


@pytest.mark.parametrize(
    ("points", "parts"),
    [
        (["before_optimizer_step", "after_optimizer_step"], {"forward and backward": 1, "optimizer": 1, OTHER: 1}),
        ([], {"step": 1}),
        (["after_forward"], {"forward": 1, "step": 1}),
    ],
)
def test_a_loop_that_tells_less_has_coarser_parts(points, parts):
    split = Split(clock := Steps())
    walk(split, clock, [(point, 1) for point in ["before_train_iter", *points, "after_train_iter"]])
    split.end_iteration({}, split.plain)
    assert dict(split.plain.parts) == parts


def test_a_validation_is_left_out_and_fetching_goes_on_after_it():
    split = Split(clock := Steps())
    walk(split, clock, [("after_train_iter", 0), ("before_val", 1), ("after_val", 50), ("before_train_iter", 2)])
    walk(split, clock, [("after_train_iter", 4)])
    split.end_iteration({}, split.plain)
    assert dict(split.plain.parts) == {OTHER: 1, "data": 2, "step": 4}


def test_what_hooks_did_is_taken_out_of_the_part_and_stands_under_their_names():
    split = Split(clock := Steps())
    split.mark("after_train_iter", 0)
    walk(split, clock, [("before_train_iter", 5, 3), ("after_train_iter", 4, 1)])
    split.end_iteration({"logger": 3 * SECOND, "ema": SECOND}, split.plain)
    assert dict(split.plain.parts) == {"data": 2, "step": 3}
    assert dict(split.plain.hooks) == {"logger": 3, "ema": 1}


def test_hooks_that_worked_while_the_device_was_busy_did_not_hold_it_up():
    split = Split(clock := Steps())  # the device waited a second for the batch, while hooks took three on the host
    split.mark("after_train_iter", 0)
    walk(split, clock, [("before_train_iter", 1, 3), ("after_train_iter", 4)])
    split.end_iteration({"logger": 3 * SECOND}, split.plain)
    assert dict(split.plain.hooks) == {"logger": 1}
    assert dict(split.plain.parts) == {"data": 0, "step": 4}


def test_iterations_that_do_not_count_leave_nothing():
    split = Split(clock := Steps())
    for into in (None, split.traced, None):
        walk(split, clock, [("before_train_iter", 1), ("after_train_iter", 1)])
        split.end_iteration({}, into)
    assert split.plain.iterations == 0
    assert split.times is split.traced
    assert (split.traced.iterations, dict(split.traced.parts)) == (1, {"data": 1, "step": 1})


def test_an_iteration_that_the_device_has_not_done_is_added_later_and_too_many_are_forgotten():
    split = Split(clock := Steps())
    clock.known = False
    for _ in range(WAITING + 5):
        walk(split, clock, [("before_train_iter", 1), ("after_train_iter", 1)])
        split.end_iteration({}, split.plain)
    assert split.plain.iterations == 0
    clock.known = True
    split.settle()
    assert split.plain.iterations == WAITING


@given(st.lists(st.lists(st.floats(0, 10), min_size=6, max_size=6), min_size=1, max_size=5), st.floats(0, 3))
def test_the_parts_add_up_to_the_time_that_passed(rows, in_hooks):
    split = Split(clock := Steps())
    split.mark("before_train_epoch", 0)
    hooks = 0
    for row in rows:
        steps = [(point, seconds, min(in_hooks, seconds)) for point, seconds in full(*row)]
        before, hooks = hooks, walk(split, clock, steps, hooks)
        split.end_iteration({"a": hooks - before}, split.plain)
    assert split.plain.seconds == pytest.approx(clock.now, abs=1e-6)
