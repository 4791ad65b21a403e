"""Tests of the throughput over a rolling window."""

from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.throughput import ThroughputWindow


def fill(iterations, size=100):
    window = ThroughputWindow(size)
    for iteration in iterations:
        window.add(*iteration)
    return window


def test_rates_are_quotients_of_totals():
    assert fill([(1.0, 4, 100), (3.0, 8, 20)]).compute_rates() == {
        "throughput/iterations_per_second": 0.5,
        "throughput/samples_per_second": 3.0,
        "throughput/tokens_per_second": 30.0,
    }


def test_unknown_counts_and_times_are_omitted():
    assert fill([]).compute_rates() == {}
    assert fill([(0.0, 4, 4)]).compute_rates() == {}
    assert fill([(2.0, 0, 0)]).compute_rates(peak_flops=1e12) == {"throughput/iterations_per_second": 0.5}


def test_ranks_execute_the_operations_together():
    rates = fill([(2.0, 8, 40)]).compute_rates(world_size=4, flops_per_batch=3e12, peak_flops=6e12)
    assert rates == {
        "throughput/iterations_per_second": 0.5,
        "throughput/samples_per_second": 4.0,
        "throughput/tokens_per_second": 20.0,
        "throughput/flops_per_second": 6e12,
        "throughput/device/samples_per_second": 1.0,
        "throughput/device/tokens_per_second": 5.0,
        "throughput/device/flops_per_second": 1.5e12,
        "throughput/mfu": 0.25,
    }


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1), st.integers(1, 5))
def test_window_contains_the_last_iterations(iterations, size):
    last = iterations[-size:]
    rates = fill([(float(seconds), samples, tokens) for seconds, samples, tokens in iterations], size).compute_rates()
    seconds = sum(seconds for seconds, _, _ in last)
    assert rates["throughput/iterations_per_second"] == len(last) / seconds
    assert rates.get("throughput/tokens_per_second", 0.0) == sum(tokens for _, _, tokens in last) / seconds


def test_clear_removes_all_iterations():
    window = fill([(1.0, 1, 1)])
    window.clear()
    assert window.compute_rates() == {}
