import pytest
import torch

from hookbus_profiler.session import Cycle, is_profiling


def work():
    torch.ones(2, 2) @ torch.ones(2, 2)


@pytest.mark.parametrize("warmup", [0, 2])
def test_it_is_on_from_the_beginning_until_its_iterations_are_done(warmup):
    cycle = Cycle(warmup, 2)
    for _ in range(warmup + 2):
        assert is_profiling()
        assert not cycle.is_complete
        work()
        cycle.step()
    assert cycle.is_complete
    cycle.stop()
    cycle.stop()
    assert not is_profiling()
    counts = {each.key: each.count for each in cycle.profile.key_averages()}
    assert counts["aten::mm"] == 2


def test_it_may_be_stopped_in_the_middle_and_keeps_what_was_recorded():
    cycle = Cycle(1, 5)
    for _ in range(3):
        work()
        cycle.step()
    cycle.stop()
    assert not is_profiling()
    assert cycle.recorded == 2
    assert {each.key: each.count for each in cycle.profile.key_averages()}["aten::mm"] == 2


def test_stopped_while_it_warms_up_it_has_recorded_nothing():
    cycle = Cycle(3, 1)
    cycle.step()
    cycle.stop()
    assert (cycle.recorded, is_profiling()) == (0, False)
