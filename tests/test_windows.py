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

from hookbus.metrics import MetricStore
from hookbus.testing import fingerprint
from hookbus.windows import CHUNK, exact_sum, to_float, to_host, wide

Value = Any
KINDS: dict[str, Callable[[float], Value]] = {
    "float": float,
    "tensor": lambda number: torch.tensor(number, dtype=torch.float64),
}


def feed(store: MetricStore, values: Sequence[Value], name: str = "loss") -> None:
    """One value per iteration."""
    for value in values:
        store.log({name: value})
        store.row += 1


def mean(store: MetricStore, window: str = "w", name: str = "train/loss") -> float:
    return store.means(store.window(window))[name]


def stored_anew(store: MetricStore, windows: Sequence[str] = ("w",)) -> MetricStore:
    """A fresh store that has loaded the state of another."""
    fresh = MetricStore()
    for name in windows:
        fresh.window(name)
    fresh.load_state_dict(store.state_dict())
    return fresh


class TestMeans:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5])
    def test_are_exact_for_whole_numbers(self, kind: str, count: int) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [KINDS[kind](i * i) for i in range(count)])

        assert mean(store) == float(Fraction(sum(i * i for i in range(count)), count))

    def test_keep_what_float32_sums_would_lose(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [torch.tensor(1.0e8), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(1.0)])

        assert mean(store) == (1.0e8 + 3) / 4

    def test_begin_where_the_window_was_reset_in_the_middle_of_a_chunk(self) -> None:
        store = MetricStore()
        window = store.window("w")
        feed(store, [float(i) for i in range(10)])
        window.reset()
        feed(store, [float(i) for i in range(10, 10 + 2 * CHUNK)])

        assert mean(store) == sum(range(10, 10 + 2 * CHUNK)) / (2 * CHUNK)

    def test_are_over_the_iterations_that_logged_the_value(self) -> None:
        store = MetricStore()
        store.window("w")
        for i in range(6):
            store.log({"loss": float(i)})
            if i % 3 == 0:
                store.log({"lr": float(10 * i)})
            store.row += 1

        assert dict(store.means(store.window("w"))) == {"train/loss": 2.5, "train/lr": 15.0}

    def test_a_window_knows_nothing_of_what_came_before_it(self) -> None:
        store = MetricStore()
        feed(store, [1.0, 2.0])
        late = store.window("late")

        assert not late
        assert dict(store.means(late)) == {}
        feed(store, [5.0])
        assert late
        assert mean(store, "late") == 5.0

    def test_windows_do_not_disturb_each_other(self) -> None:
        store = MetricStore()
        short, long = store.window("short"), store.window("long")
        for start in (0, 100):
            feed(store, [float(i) for i in range(start, start + 100)])
            assert mean(store, "short") == start + 49.5
            short.reset()

        assert store.means(long)["train/loss"] == 99.5


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Value], list[str]]:
    """Values, and what is done after each of them."""
    number = st.floats(-1e6, 1e6)
    count = draw(st.integers(1, 3 * CHUNK))
    kinds = draw(st.sampled_from([["float"], ["tensor"], ["float", "tensor"]]))
    values = [KINDS[kinds[i % len(kinds)]](draw(number)) for i in range(count)]
    actions = draw(st.lists(st.sampled_from(["nothing", "read", "resume"]), min_size=count, max_size=count))
    return values, actions


class TestWhenTheyAreRead:
    @settings(max_examples=40, deadline=None)
    @given(histories())
    def test_neither_reading_nor_resuming_changes_a_bit(self, history: tuple[list[Value], list[str]]) -> None:
        values, actions = history
        plain, disturbed = MetricStore(), MetricStore()
        plain.window("w"), disturbed.window("w")
        for value, action in zip(values, actions, strict=True):
            feed(plain, [value])
            feed(disturbed, [value])
            if action == "read":
                disturbed.means(disturbed.window("w"))
                disturbed.latest()
            elif action == "resume":
                disturbed = stored_anew(disturbed)

        assert mean(disturbed).hex() == mean(plain).hex()
        assert fingerprint(disturbed.state_dict()) == fingerprint(plain.state_dict())

    def test_a_window_that_nobody_asks_for_after_a_resume_goes_on_all_the_same(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0] * 10)
        without_hook = MetricStore()
        without_hook.load_state_dict(store.state_dict())
        assert not without_hook.watched
        feed(without_hook, [2.0] * (2 * CHUNK))
        with_hook = stored_anew(without_hook)

        assert mean(with_hook) == (10 * 1 + 2 * CHUNK * 2) / (10 + 2 * CHUNK)

    def test_a_window_that_the_checkpoint_does_not_know_begins_there(self) -> None:
        store = MetricStore()
        feed(store, [1.0] * 3)
        resumed = stored_anew(store, ["new"])
        feed(resumed, [7.0])

        assert mean(resumed, "new") == 7.0

    def test_the_state_is_a_copy(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [torch.tensor(1.0)])
        state = store.state_dict()
        before = fingerprint(state)
        feed(store, [torch.tensor(9.0)] * (CHUNK + 3))

        assert fingerprint(state) == before


class TestSeveralWindows:
    @pytest.mark.parametrize("kind", KINDS)
    def test_read_together_tell_what_each_of_them_tells(self, kind: str) -> None:
        store = MetricStore()
        windows = {name: store.window(name) for name in ("whole", "late", "later")}
        for i in range(3 * CHUNK):
            if i == 10:
                windows["late"].reset(), windows["later"].reset()
            if i == CHUNK + 1:
                windows["later"].reset()
            feed(store, [KINDS[kind](i)])

        found = [dict(each) for each in store.means_of(windows.values())]

        last = 3 * CHUNK - 1
        assert found == [{"train/loss": (begin + last) / 2} for begin in (0, 10, CHUNK + 1)]

    def test_those_that_hold_the_same_are_read_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, reads = MetricStore(), []
        windows = [store.window(name) for name in "abc"]
        feed(store, [torch.tensor(float(i)) for i in range(6)])
        tolist = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (reads.append(1), tolist(tensor))[1])

        assert [each["train/loss"] for each in store.means_of(windows)] == [2.5] * 3
        assert len(reads) == 1

    def test_a_full_chunk_is_summed_once_for_those_that_began_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, sums = MetricStore(), []
        for name in "abc":
            store.window(name)
        feed(store, [torch.tensor(1.0)] * CHUNK)
        summed = torch.Tensor.sum
        monkeypatch.setattr(torch.Tensor, "sum", lambda tensor: (sums.append(1), summed(tensor))[1])
        feed(store, [torch.tensor(2.0)])

        assert len(sums) == 2, "the values, and how many of them are not finite"


class TestNotFinite:
    def test_values_are_counted_and_spoil_the_mean(self) -> None:
        for kind in KINDS.values():
            store = MetricStore()
            store.window("w")
            feed(store, [kind(1.0), kind(math.nan), kind(1.0)])
            found = store.means(store.window("w"))

            assert math.isnan(found["train/loss"])
            assert found.nonfinite == {"train/loss": 1}

    @pytest.mark.parametrize("kind", KINDS)
    def test_infinities_of_both_signs_do_not_raise(self, kind: str) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [KINDS[kind](value) for value in [math.inf, -math.inf] + [1.0] * CHUNK])
        found = store.means(store.window("w"))

        assert math.isnan(found["train/loss"])
        assert found.nonfinite == {"train/loss": 2}

    def test_one_infinity_is_the_mean(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0, math.inf])

        assert mean(store) == math.inf

    def test_they_are_gone_after_a_reset(self) -> None:
        store = MetricStore()
        window = store.window("w")
        feed(store, [math.nan])
        window.reset()
        feed(store, [2.0])
        found = store.means(window)

        assert (found["train/loss"], found.nonfinite) == (2.0, {})


class TestTwiceInOneIteration:
    @pytest.mark.parametrize(("first", "second"), [("float", "float"), ("tensor", "tensor"), ("float", "tensor")])
    def test_the_second_value_replaces_the_first(self, first: str, second: str) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0])
        store.log({"loss": KINDS[first](100.0)})
        store.log({"loss": KINDS[second](3.0)})
        store.row += 1

        assert mean(store) == 2.0

    @pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1])
    def test_also_at_the_border_of_a_chunk(self, count: int) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [0.0] * (count - 1))
        for value in (50.0, float(count)):
            store.log({"loss": value})
        store.row += 1
        feed(store, [0.0] * count)

        assert mean(store) == count / (2 * count)

    def test_a_window_that_was_reset_in_between_has_the_second(self) -> None:
        store = MetricStore()
        window, whole = store.window("w"), store.window("whole")
        store.log({"lr": 1.0})
        window.reset()
        store.log({"lr": 5.0})
        store.row += 1

        assert mean(store, name="train/lr") == 5.0
        assert store.means(whole)["train/lr"] == 5.0

    def test_an_iteration_in_progress_is_still_in_progress_after_a_resume(self) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [1.0])
        store.log({"loss": 100.0})
        resumed = stored_anew(store)
        resumed.log({"loss": 3.0})
        resumed.row += 1

        assert mean(resumed) == 2.0


class TestKindsOfValues:
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
    def test_every_single_number_counts_with_its_value(self, value: Value, number: float) -> None:
        store = MetricStore()
        store.window("w")
        feed(store, [value])

        assert mean(store) == number
        assert store.latest()["train/loss"] == number

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_floats_and_tensors_go_into_one_mean(self, order: tuple[int, int]) -> None:
        store = MetricStore()
        store.window("w")
        makers = list(KINDS.values())
        for start in order:
            feed(store, [makers[start](i) for i in range(1, 6)])

        assert mean(store) == 3.0

    def test_two_spellings_of_a_name_are_one_metric_even_when_its_kind_changes(self) -> None:
        store = MetricStore()
        store.window("w")
        for name, value in [("loss", 1.0), ("train/loss", 2.0), ("train/loss", torch.tensor(3.0)), ("loss", 6.0)]:
            feed(store, [value], name)

        assert mean(store) == 3.0

    def test_a_tensor_that_the_loop_overwrites_counts_as_it_was(self) -> None:
        store = MetricStore()
        store.window("w")
        loss = torch.zeros(())
        for i in range(4):
            loss.fill_(i)
            feed(store, [loss])
        loss.fill_(1000.0)

        assert mean(store) == 1.5
        assert store.latest()["train/loss"] == 3.0

    def test_tensors_of_inference_mode_are_taken_in_and_out_of_it(self) -> None:
        store = MetricStore()
        store.window("w")
        with torch.inference_mode():
            feed(store, [torch.tensor(1.0)] * (CHUNK + 1))
            inside = torch.tensor(3.0)
            state = store.state_dict()
        feed(store, [inside] * (CHUNK + 1))
        resumed = MetricStore()
        resumed.window("w")
        resumed.load_state_dict(state)
        feed(resumed, [inside] * (CHUNK + 1))

        assert mean(store) == mean(resumed) == 2.0


class TestMemory:
    def test_no_graph_is_kept(self) -> None:
        store = MetricStore()
        store.window("w")
        alive: list[weakref.ref[Any]] = []
        for _ in range(5):
            assert all(ref() is None for ref in alive), "an activation outlived its iteration"
            activation = torch.ones(3, requires_grad=True) * 2
            alive.append(weakref.ref(activation))
            feed(store, [(activation * activation).sum()])  # the graph of the square holds the activation
            del activation
            gc.collect()

        assert mean(store) == 12.0
        assert not any(tensor.requires_grad for tensor in _tensors(store.state_dict()))

    @pytest.mark.parametrize("kind", KINDS)
    def test_is_bounded_however_long_the_run(self, kind: str) -> None:
        store = MetricStore()
        store.window("w")
        value = KINDS[kind](1.0)
        feed(store, [value] * 1000)
        gc.collect()
        tracemalloc.start()
        try:
            feed(store, [value] * 100_000)
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert grown < 10_000, f"{grown} bytes more after 10^5 iterations"
        assert mean(store) == 1.0
        assert len(store.state_dict()["columns"]["train/loss"]["values"]) <= CHUNK


class TestToHost:
    def test_numbers_and_tensors_keep_their_places(self) -> None:
        values = [1.5, torch.tensor(2), torch.tensor(0.5, dtype=torch.bfloat16), 3]

        assert to_host(values) == [1.5, 2.0, 0.5, 3.0]
        assert to_host([]) == []

    def test_wide_is_float64_where_the_device_has_it(self) -> None:
        assert wide(torch.tensor(1, dtype=torch.int32)).dtype == torch.float64

    @pytest.mark.parametrize("value", [0.25, np.float32(0.25), np.array([0.25]), torch.tensor([0.25])])
    def test_to_float_takes_every_single_number(self, value: Value) -> None:
        assert to_float(value) == 0.25
        assert type(to_float(value)) is float


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, (list, tuple)) else []


class TestExactSum:
    def test_is_rounded_once(self) -> None:
        assert exact_sum([1e16, 1.0, -1e16, 1.0]) == 2.0

    def test_of_what_is_not_finite_is_not(self) -> None:
        assert exact_sum([1.0, math.inf]) == math.inf
        assert math.isnan(exact_sum([math.inf, -math.inf]))


def test_a_sum_is_rounded_once_and_never_fails() -> None:
    assert exact_sum([1e16, 1.0, -1e16]) == 1.0
    assert exact_sum([1e308, 1e308]) == math.inf
    assert math.isnan(exact_sum([1.0, math.nan]))
