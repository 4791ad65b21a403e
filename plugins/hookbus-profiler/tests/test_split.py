import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_profiler.split import OTHER, RESUMED, TOGETHER, WAITING, Split

POINTS = ["before_train_iter", "after_forward", "after_backward", "before_optimizer_step", "after_optimizer_step"]
SECOND = 10**9


class Steps:
    """A clock that the test sets; marks may not have been reached for a while."""

    def __init__(self):
        self.now, self.reached, self.waits = 0.0, True, 0

    def mark(self):
        return self.now

    def is_past(self, mark):
        return self.reached

    def wait(self, mark):
        self.waits += 1
        self.reached = True

    def between(self, first, second):
        assert self.reached
        return second - first


class Walk:
    """A loop that marks points, each after so many seconds, some of which hooks have taken."""

    def __init__(self):
        self.clock = Steps()
        self.split = Split(self.clock)
        self.split.count_for(self.split.plain)
        self.spent = {}

    def mark(self, point, seconds=0, **hooks):
        for name, taken in hooks.items():
            self.spent[name, "point"] = self.spent.get((name, "point"), 0) + int(taken * SECOND)
        self.clock.now += seconds
        self.split.mark(point, sum(self.spent.values()))

    def end_iteration(self, seconds=0, **hooks):
        self.mark("after_train_iter", seconds, **hooks)
        self.split.end_iteration(self.spent)

    def iteration(self):
        """Waiting for data a second, and the rest as long."""
        self.mark("before_train_iter", 1)
        self.end_iteration(1)

    @property
    def found(self):
        self.split.finish()
        return self.split.plain


@pytest.fixture
def walk():
    return Walk()


def test_each_piece_belongs_to_its_part_and_they_add_up_to_the_whole(walk):
    walk.mark("before_train_epoch")
    for point, seconds in zip(POINTS, [5, 1, 2, 0.25, 0.5], strict=True):
        walk.mark(point, seconds)
    walk.end_iteration(0.125)
    assert dict(walk.found.parts) == {"data": 5, "forward": 1, "backward": 2, "optimizer": 0.75, OTHER: 0.125}
    assert (walk.found.seconds, walk.found.iterations) == (8.875, 1)


@pytest.mark.parametrize(
    ("points", "parts"),
    [
        (["before_optimizer_step", "after_optimizer_step"], {"forward and backward": 1, "optimizer": 1, OTHER: 1}),
        ([], {"step": 1}),
        (["after_forward"], {"forward": 1, "step": 1}),
        (["after_forward", "before_optimizer_step"], {"forward": 1, "backward": 1, OTHER: 1}),
    ],
)
def test_a_loop_that_tells_less_has_coarser_parts(walk, points, parts):
    walk.mark("before_train_iter", 1)
    for point in points:
        walk.mark(point, 1)
    walk.end_iteration(1)
    assert dict(walk.found.parts) == parts


def test_a_validation_is_left_out_and_fetching_goes_on_after_it(walk):
    walk.end_iteration()
    walk.mark("before_val", 1)
    walk.mark("after_val", 50)
    walk.mark("before_train_iter", 2)
    walk.end_iteration(4)
    assert dict(walk.found.parts) == {OTHER: 1, "data": 2, "step": 4}


def test_what_the_profiler_does_between_two_iterations_is_left_out(walk):
    walk.end_iteration()
    walk.mark(RESUMED, 50)
    walk.mark("before_train_iter", 2)
    walk.end_iteration(4)
    assert dict(walk.found.parts) == {"data": 2, "step": 4}


def test_what_hooks_did_is_taken_out_of_the_part_and_stands_under_their_names(walk):
    walk.end_iteration()
    walk.mark("before_train_iter", 5, logger=3)
    walk.end_iteration(4, ema=1)
    assert dict(walk.found.parts) == {"data": 2, "step": 3}
    assert dict(walk.found.hooks) == {"logger": 3, "ema": 1}


def test_hooks_that_worked_while_the_device_was_busy_did_not_hold_it_up(walk):
    walk.end_iteration()  # the device then waited a second for the batch, while hooks took three on the host
    walk.mark("before_train_iter", 1, logger=3)
    walk.end_iteration(4)
    assert dict(walk.found.hooks) == {"logger": 1}
    assert dict(walk.found.parts) == {"data": 0, "step": 4}


def test_hooks_have_the_time_of_the_iterations_that_they_worked_in(walk):
    split = walk.split
    for into, hooks in ((split.odd, {"logger": 3}), (split.plain, {"ema": 1}), (split.traced, {"logger": 2})):
        split.count_for(into)
        walk.mark("before_train_iter", 5, **hooks)
        walk.end_iteration(4)
    split.finish()
    assert (dict(split.plain.hooks), dict(split.traced.hooks)) == ({"ema": 1}, {"logger": 2})


def test_what_hooks_did_after_the_last_iteration_is_in_no_sum(walk):
    walk.end_iteration()
    walk.mark("before_train_iter", 5, logger=3)
    walk.end_iteration(4)
    walk.mark("before_train_iter", 100, checkpoint=100)
    assert dict(walk.found.hooks) == {"logger": 3}
    assert walk.found.seconds == 9


def test_iterations_that_are_odd_stand_apart(walk):
    split = walk.split
    for into in (split.odd, split.traced, split.odd, split.traced):
        split.count_for(into)
        walk.iteration()
    walk.split.finish()
    assert split.plain.iterations == 0
    assert split.times is split.traced
    assert (split.traced.iterations, dict(split.traced.parts)) == (2, {"data": 2, "step": 2})


def test_iterations_that_are_odd_are_better_than_none(walk):
    walk.split.count_for(walk.split.odd)
    walk.iteration()
    walk.split.finish()
    assert walk.split.times is walk.split.odd
    assert walk.split.odd.iterations == 1


def test_iterations_that_were_not_traced_win(walk):
    walk.split.count_for(walk.split.traced)
    walk.iteration()
    walk.split.count_for(walk.split.plain)
    walk.iteration()
    walk.split.finish()
    assert walk.split.times is walk.split.plain
    assert walk.split.traced.iterations == walk.split.plain.iterations == 1


class TestADeviceThatIsBehind:
    def test_is_not_waited_for_before_the_end(self, walk):
        walk.clock.reached = False
        for _ in range(2 * TOGETHER + 1):
            walk.iteration()
        assert (walk.split.plain.iterations, walk.clock.waits) == (0, 0)
        assert walk.found.iterations == 2 * TOGETHER + 1
        assert walk.clock.waits > 0

    def test_has_its_iterations_added_up_as_soon_as_it_is_done_with_them(self, walk):
        walk.clock.reached = False
        for _ in range(TOGETHER):
            walk.iteration()
        walk.clock.reached = True
        for _ in range(TOGETHER):
            walk.iteration()
        assert (walk.split.plain.iterations, walk.clock.waits) == (2 * TOGETHER, 0)

    def test_leaves_the_oldest_out_where_it_is_too_far_behind(self, walk):
        walk.clock.reached = False
        for _ in range((WAITING + 2) * TOGETHER):
            walk.iteration()
        assert walk.found.iterations == WAITING * TOGETHER


@given(
    st.lists(st.lists(st.floats(0, 10), min_size=6, max_size=6), min_size=1, max_size=3),
    st.floats(0, 3),
    st.integers(1, 2 * TOGETHER),
)
def test_the_parts_add_up_to_the_time_that_passed(rows, in_hooks, times):
    walk = Walk()
    walk.mark("before_train_epoch")
    for _ in range(times):
        for row in rows:
            for point, seconds in zip(POINTS, row[:-1], strict=True):
                walk.mark(point, seconds, a=min(in_hooks, seconds))
            walk.end_iteration(row[-1])
    assert walk.found.iterations == times * len(rows)
    assert walk.found.seconds == pytest.approx(walk.clock.now, rel=1e-6, abs=1e-6)
