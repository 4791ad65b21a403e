"""Tests of windows and buffers."""

from __future__ import annotations

import gc
import math
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus.metrics.store import MetricStore
from hookbus.metrics.windows import CHUNK_SIZE, compute_means, exact_sum, to_float, to_floats, to_widest_float
from hookbus.testing import fingerprint

Value = Any
MAKERS: dict[str, Callable[[float], Value]] = {
    "float": float,
    "tensor": lambda number: torch.tensor(number, dtype=torch.float64),
}


def feed(store: MetricStore, values: Sequence[Value], name: str = "loss") -> None:
    """Log one value per iteration."""
    for value in values:
        store.log({name: value})
        store.row += 1


def get_mean(store: MetricStore, window: str = "w", name: str = "train/loss") -> float:
    return store.means(store.window(window))[name]


def reload(store: MetricStore, windows: Sequence[str] = ("w",)) -> MetricStore:
    """Return a new store that has loaded the state of another."""
    fresh = MetricStore()
    for name in windows:
        fresh.window(name)
    fresh.load_state_dict(store.state_dict())
    return fresh


class TestMeans:
    @pytest.mark.parametrize("type_name", MAKERS)
    @pytest.mark.parametrize(
        "count", [1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE, 3 * CHUNK_SIZE + 5]
    )
    def test_means_of_integers_are_exact(self, type_name: str, count: int) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [MAKERS[type_name](i * i) for i in range(count)])

        assert get_mean(store) == float(Fraction(sum(i * i for i in range(count)), count))

    def test_means_are_accumulated_in_float64(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [torch.tensor(1.0e8), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(1.0)])

        assert get_mean(store) == (1.0e8 + 3) / 4

    def test_window_can_be_reset_in_the_middle_of_a_chunk(self) -> None:
        store = MetricStore()
        window = store.window("w")
        feed(store, [float(i) for i in range(10)])
        window.reset()
        feed(store, [float(i) for i in range(10, 10 + 2 * CHUNK_SIZE)])

        assert get_mean(store) == sum(range(10, 10 + 2 * CHUNK_SIZE)) / (2 * CHUNK_SIZE)

    def test_means_are_over_the_iterations_that_logged_the_value(self) -> None:
        store = MetricStore()
        store.window("w")
        for i in range(6):
            store.log({"loss": float(i)})
            if i % 3 == 0:
                store.log({"lr": float(10 * i)})
            store.row += 1

        assert dict(store.means(store.window("w"))) == {"train/loss": 2.5, "train/lr": 15.0}

    def test_new_window_contains_no_earlier_values(self) -> None:
        store = MetricStore()
        feed(store, [1.0, 2.0])
        late = store.window("late")

        assert not late
        assert dict(store.means(late)) == {}
        feed(store, [5.0])
        assert late
        assert get_mean(store, "late") == 5.0

    def test_windows_are_independent(self) -> None:
        store = MetricStore()
        short, long = store.window("short"), store.window("long")
        for start in (0, 100):
            feed(store, [float(i) for i in range(start, start + 100)])
            assert get_mean(store, "short") == start + 49.5
            short.reset()

        assert store.means(long)["train/loss"] == 99.5


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Value], list[str]]:
    """Generate values and the action after each of them."""
    number = st.floats(-1e6, 1e6)
    count = draw(st.integers(1, 3 * CHUNK_SIZE))
    types = draw(st.sampled_from([["float"], ["tensor"], ["float", "tensor"]]))
    values = [MAKERS[types[i % len(types)]](draw(number)) for i in range(count)]
    actions = draw(st.lists(st.sampled_from(["nothing", "read", "resume"]), min_size=count, max_size=count))
    return values, actions


class TestReadingAndResuming:
    @pytest.mark.slow
    @settings(max_examples=40, deadline=None)
    @given(histories())
    def test_means_are_bitwise_identical_after_reading_and_resuming(
        self, history: tuple[list[Value], list[str]]
    ) -> None:
        values, actions = history
        undisturbed, disturbed = MetricStore(), MetricStore()
        undisturbed.window("w"), disturbed.window("w")
        for value, action in zip(values, actions, strict=True):
            feed(undisturbed, [value])
            feed(disturbed, [value])
            if action == "read":
                disturbed.means(disturbed.window("w"))
                disturbed.latest()
            elif action == "resume":
                disturbed = reload(disturbed)

        assert get_mean(disturbed).hex() == get_mean(undisturbed).hex()
        assert fingerprint(disturbed.state_dict()) == fingerprint(undisturbed.state_dict())

    def test_window_that_is_not_requested_after_a_resume_continues(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0] * 10)
        without_hook = MetricStore()
        without_hook.load_state_dict(store.state_dict())
        assert not without_hook.has_reader
        feed(without_hook, [2.0] * (2 * CHUNK_SIZE))
        with_hook = reload(without_hook)

        assert get_mean(with_hook) == (10 * 1 + 2 * CHUNK_SIZE * 2) / (10 + 2 * CHUNK_SIZE)

    def test_window_missing_in_the_checkpoint_starts_at_the_resume(self) -> None:
        store = MetricStore()
        feed(store, [1.0] * 3)
        resumed = reload(store, ["new"])
        feed(resumed, [7.0])

        assert get_mean(resumed, "new") == 7.0

    def test_state_is_a_copy(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [torch.tensor(1.0)])
        state = store.state_dict()
        before = fingerprint(state)
        feed(store, [torch.tensor(9.0)] * (CHUNK_SIZE + 3))

        assert fingerprint(state) == before


class TestMultipleWindows:
    @pytest.mark.parametrize("type_name", MAKERS)
    def test_windows_read_together_have_separate_means(self, type_name: str) -> None:
        store = MetricStore()
        windows = {name: store.window(name) for name in ("total", "late", "later")}
        for i in range(3 * CHUNK_SIZE):
            if i == 10:
                windows["late"].reset(), windows["later"].reset()
            if i == CHUNK_SIZE + 1:
                windows["later"].reset()
            feed(store, [MAKERS[type_name](i)])

        means = [dict(window_means) for window_means in compute_means(windows.values())]

        last = 3 * CHUNK_SIZE - 1
        assert means == [{"train/loss": (begin + last) / 2} for begin in (0, 10, CHUNK_SIZE + 1)]

    def test_windows_with_equal_parts_are_read_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, reads = MetricStore(), []
        windows = [store.window(name) for name in "abc"]
        feed(store, [torch.tensor(float(i)) for i in range(6)])
        tolist = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (reads.append(1), tolist(tensor))[1])

        assert [means["train/loss"] for means in compute_means(windows)] == [2.5] * 3
        assert len(reads) == 1

    def test_full_chunk_is_summed_once_for_windows_reset_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, sums = MetricStore(), []
        for name in "abc":
            store.window(name)
        feed(store, [torch.tensor(1.0)] * CHUNK_SIZE)
        summed = torch.Tensor.sum
        monkeypatch.setattr(torch.Tensor, "sum", lambda tensor: (sums.append(1), summed(tensor))[1])
        feed(store, [torch.tensor(2.0)])

        assert len(sums) == 2, "the values, and the number of nonfinite values"


class TestNonfinite:
    def test_nan_is_counted_and_makes_the_mean_nan(self) -> None:
        for make in MAKERS.values():
            store = MetricStore()
            store.window("w")
            feed(store, [make(1.0), make(math.nan), make(1.0)])
            means = store.means(store.window("w"))

            assert math.isnan(means["train/loss"])
            assert means.nonfinite == {"train/loss": 1}

    @pytest.mark.parametrize("type_name", MAKERS)
    def test_infinities_of_both_signs_make_the_mean_nan(self, type_name: str) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [MAKERS[type_name](value) for value in [math.inf, -math.inf] + [1.0] * CHUNK_SIZE])
        means = store.means(store.window("w"))

        assert math.isnan(means["train/loss"])
        assert means.nonfinite == {"train/loss": 2}

    def test_single_infinity_is_the_mean(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0, math.inf])

        assert get_mean(store) == math.inf

    def test_reset_clears_the_counts(self) -> None:
        store = MetricStore()
        window = store.window("w")
        feed(store, [math.nan])
        window.reset()
        feed(store, [2.0])
        means = store.means(window)

        assert (means["train/loss"], means.nonfinite) == (2.0, {})


class TestReplacedValues:
    @pytest.mark.parametrize(("first", "second"), [("float", "float"), ("tensor", "tensor"), ("float", "tensor")])
    def test_second_value_of_an_iteration_replaces_the_first(self, first: str, second: str) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0])
        store.log({"loss": MAKERS[first](100.0)})
        store.log({"loss": MAKERS[second](3.0)})
        store.row += 1

        assert get_mean(store) == 2.0

    @pytest.mark.parametrize("count", [CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1])
    def test_value_at_a_chunk_boundary_is_replaced(self, count: int) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [0.0] * (count - 1))
        for value in (50.0, float(count)):
            store.log({"loss": value})
        store.row += 1
        feed(store, [0.0] * count)

        assert get_mean(store) == count / (2 * count)

    def test_window_reset_between_two_values_contains_the_second(self) -> None:
        store = MetricStore()
        window, total = store.window("w"), store.window("total")
        store.log({"lr": 1.0})
        window.reset()
        store.log({"lr": 5.0})
        store.row += 1

        assert get_mean(store, name="train/lr") == 5.0
        assert store.means(total)["train/lr"] == 5.0

    def test_incomplete_iteration_is_continued_after_a_resume(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0])
        store.log({"loss": 100.0})
        resumed = reload(store)
        resumed.log({"loss": 3.0})
        resumed.row += 1

        assert get_mean(resumed) == 2.0


class TestValueTypes:
    @pytest.mark.parametrize(
        ("value", "number"),
        [
            (3, 3.0),
            (True, 1.0),
            (np.float32(0.1), float(np.float32(0.1))),
            (np.int64(3), 3.0),
            (np.bool_(True), 1.0),
            (np.array(0.5), 0.5),
            (np.array([0.5]), 0.5),
            (torch.tensor(0.1, dtype=torch.bfloat16), 0.10009765625),
            (torch.tensor(0.5, dtype=torch.float16), 0.5),
            (torch.tensor(7), 7.0),
            (torch.tensor(2**53 - 1), float(2**53 - 1)),
            (torch.tensor(True), 1.0),
            (torch.tensor([[2.5]]), 2.5),
            (torch.nn.Parameter(torch.tensor(4.0)), 4.0),
        ],
    )
    def test_every_number_type_is_accepted(self, value: Value, number: float) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [value])

        assert get_mean(store) == number
        assert store.latest()["train/loss"] == number

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_floats_and_tensors_have_a_common_mean(self, order: tuple[int, int]) -> None:
        store = MetricStore()
        store.window("w")
        makers = list(MAKERS.values())
        for start in order:
            feed(store, [makers[start](i) for i in range(1, 6)])

        assert get_mean(store) == 3.0

    def test_two_forms_of_a_name_are_one_metric_even_if_its_type_changes(self) -> None:
        store = MetricStore()
        store.window("w")
        for name, value in [("loss", 1.0), ("train/loss", 2.0), ("train/loss", torch.tensor(3.0)), ("loss", 6.0)]:
            feed(store, [value], name)

        assert get_mean(store) == 3.0

    def test_later_changes_of_a_tensor_have_no_effect(self) -> None:
        store = MetricStore()
        store.window("w")
        loss = torch.zeros(())
        for i in range(4):
            loss.fill_(i)
            feed(store, [loss])
        loss.fill_(1000.0)

        assert get_mean(store) == 1.5
        assert store.latest()["train/loss"] == 3.0

    def test_inference_tensors_are_accepted_inside_and_outside_the_mode(self) -> None:
        store = MetricStore()
        store.window("w")
        with torch.inference_mode():
            feed(store, [torch.tensor(1.0)] * (CHUNK_SIZE + 1))
            inside = torch.tensor(3.0)
            state = store.state_dict()
        feed(store, [inside] * (CHUNK_SIZE + 1))
        resumed = MetricStore()
        resumed.window("w")
        resumed.load_state_dict(state)
        feed(resumed, [inside] * (CHUNK_SIZE + 1))

        assert get_mean(store) == get_mean(resumed) == 2.0


class TestMemory:
    @pytest.mark.slow
    def test_graph_is_released(self) -> None:
        store = MetricStore()
        store.window("w")
        references: list[weakref.ref[Any]] = []
        for _ in range(5):
            assert all(ref() is None for ref in references), "an activation outlived its iteration"
            activation = torch.ones(3, requires_grad=True) * 2
            references.append(weakref.ref(activation))
            feed(store, [(activation * activation).sum()])  # the graph of the square references the activation
            del activation
            gc.collect()

        assert get_mean(store) == 12.0
        assert not any(tensor.requires_grad for tensor in _find_tensors(store.state_dict()))

    @pytest.mark.slow
    @pytest.mark.parametrize("type_name", MAKERS)
    def test_memory_does_not_grow_with_the_length_of_the_run(self, type_name: str) -> None:
        store = MetricStore()
        store.window("w")
        value = MAKERS[type_name](1.0)
        feed(store, [value] * 1000)
        gc.collect()
        tracemalloc.start()
        try:
            feed(store, [value] * 100_000)
            growth, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert growth < 10_000, f"{growth} bytes more after 10^5 iterations"
        assert get_mean(store) == 1.0
        assert len(store.state_dict()["columns"]["train/loss"]["values"]) <= CHUNK_SIZE


class TestToFloats:
    def test_order_of_numbers_and_tensors_is_preserved(self) -> None:
        values = [1.5, torch.tensor(2), torch.tensor(0.5, dtype=torch.bfloat16), 3]

        assert to_floats(values) == [1.5, 2.0, 0.5, 3.0]
        assert to_floats([]) == []

    def test_widest_float_is_float64_on_the_cpu(self) -> None:
        assert to_widest_float(torch.tensor(1, dtype=torch.int32)).dtype == torch.float64

    @pytest.mark.parametrize("value", [0.25, np.float32(0.25), np.array([0.25]), torch.tensor([0.25])])
    def test_to_float_accepts_every_number_type(self, value: Value) -> None:
        assert to_float(value) == 0.25
        assert type(to_float(value)) is float


def _find_tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _find_tensors(item)] if isinstance(value, (list, tuple)) else []


class TestExactSum:
    def test_sum_is_rounded_once(self) -> None:
        assert exact_sum([1e16, 1.0, -1e16, 1.0]) == 2.0

    def test_sum_of_nonfinite_values_is_nonfinite(self) -> None:
        assert exact_sum([1.0, math.inf]) == math.inf
        assert math.isnan(exact_sum([math.inf, -math.inf]))


def test_sum_does_not_overflow() -> None:
    assert exact_sum([1e16, 1.0, -1e16]) == 1.0
    assert exact_sum([1e308, 1e308]) == math.inf
    assert math.isnan(exact_sum([1.0, math.nan]))
