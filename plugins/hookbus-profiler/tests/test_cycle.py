import pytest
import torch

from hookbus_profiler.cycle import Cycle, is_profiling


def work():
    torch.ones(2, 2) @ torch.ones(2, 2)


@pytest.mark.parametrize("warmup", [0, 2])
def test_cycle_is_active_from_construction_to_stop(warmup):
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
    counts = {event.key: event.count for event in cycle.profile.key_averages()}
    assert counts["aten::mm"] == 2


def test_cycle_stopped_early_has_the_recorded_iterations():
    cycle = Cycle(1, 5)
    for _ in range(3):
        work()
        cycle.step()
    cycle.stop()
    assert not is_profiling()
    assert cycle.recorded_iterations == 2
    assert {event.key: event.count for event in cycle.profile.key_averages()}["aten::mm"] == 2


def test_cycle_stopped_during_warm_up_has_no_recorded_iterations():
    cycle = Cycle(3, 1)
    cycle.step()
    cycle.stop()
    assert (cycle.recorded_iterations, is_profiling()) == (0, False)
