"""Outputs of batches, gathered in the order of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus._training.output_collector import OutputCollector
from hookbus.distributed.collectives import Collectives
from hookbus.errors import LoopError

T = TypeVar("T")


class OtherRanks(Collectives):
    """Collectives of rank 0 that gather the values of other collectors after its own."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []

    def all_gather(self, _name: str, value: T) -> list[T]:
        self.values.append(value)
        return self.values


def collect(*batches: tuple[Any, Sequence[int] | None], samples: int | None = None) -> OutputCollector:
    """Return a collector with (outputs, indices) of each batch."""
    warnings: list[str] = []
    collector = OutputCollector(lambda message, *values: warnings.append(message % values))
    collector.begin(None)
    for outputs, indices in batches:
        collector.add(None, outputs, indices, samples)
    collector.warnings = warnings  # type: ignore[attr-defined]
    return collector


def gather(*batches: tuple[Any, Sequence[int] | None], samples: int | None = None) -> Any:
    return collect(*batches, samples=samples).gather(Collectives())


def rows(*values: float) -> dict[str, Any]:
    return {"output": torch.tensor(values)}


def test_samples_are_in_the_order_of_the_data() -> None:
    assert gather((rows(3, 1), [3, 1]), (rows(0, 2), [0, 2])).tolist() == [0, 1, 2, 3]


@given(st.permutations(range(12)), st.integers(1, 5))
def test_every_order_and_batch_size_has_the_same_result(order: list[int], size: int) -> None:
    batches = [order[start : start + size] for start in range(0, 12, size)]
    assert gather(*((rows(*batch), batch) for batch in batches)).tolist() == list(range(12))


def test_samples_without_indices_are_in_the_order_of_the_batches() -> None:
    assert gather((rows(3, 1), None), (rows(2), None)).tolist() == [3, 1, 2]


def test_repeated_samples_of_one_process_are_kept() -> None:
    assert gather((rows(1.0, 0.0), [1, 0]), (rows(1.5), [1])).tolist() == [0, 1, 1.5]


def test_only_output_is_returned_itself_and_others_by_name() -> None:
    outputs = {"logits": torch.zeros(1, 2), "states": (torch.ones(1), torch.zeros(1))}
    result = gather((outputs, [0]), (outputs, [1]))
    assert list(result) == ["logits", "states"]
    assert result["logits"].shape == (2, 2)
    assert [part.tolist() for part in result["states"]] == [[1, 1], [0, 0]]


def test_outputs_of_different_shapes_are_a_list() -> None:
    result = gather(({"output": torch.ones(1, 3)}, [1]), ({"output": torch.zeros(2, 2)}, [0, 2]))
    assert [row.tolist() for row in result] == [[0, 0], [1, 1, 1], [0, 0]]


def test_lists_of_samples_remain_lists() -> None:
    assert gather(({"output": ["b", "a"]}, [1, 0]), ({"output": ["c"]}, [2])) == ["a", "b", "c"]


def test_named_loaders_have_results_of_their_own() -> None:
    collector = collect()
    collector._loaders.clear()
    for name, value in (("a", 1.0), ("b", 2.0)):
        collector.begin(name)
        collector.add(name, rows(value), [0], None)
    assert {name: result.tolist() for name, result in collector.gather(Collectives()).items()} == {"a": [1], "b": [2]}


class TestRanks:
    @staticmethod
    def gather(*ranks: OutputCollector) -> Any:
        collectives, result = OtherRanks(), None
        for collector in ranks:
            result = collector.gather(collectives)
        return result

    def test_samples_of_all_ranks_are_merged(self) -> None:
        first, second = collect((rows(0, 1), [0, 1]), (rows(4), [4])), collect((rows(2, 3), [2, 3]))
        assert self.gather(first, second).tolist() == [0, 1, 2, 3, 4]

    def test_samples_that_a_sampler_repeats_are_returned_once(self) -> None:
        assert self.gather(collect((rows(0, 2), [0, 2])), collect((rows(1, 0), [1, 0]))).tolist() == [0, 1, 2]

    def test_rank_may_have_no_batch(self) -> None:
        assert self.gather(collect((rows(5), [0])), collect()).tolist() == [5]

    def test_samples_without_indices_are_in_the_order_of_the_ranks(self) -> None:
        assert self.gather(collect((rows(1, 2), None)), collect((rows(3), None))).tolist() == [1, 2, 3]


def test_values_of_the_batch_are_reported() -> None:
    collector = collect(({"output": torch.ones(2), "mean": torch.tensor(1.0)}, [0, 1]))
    assert collector.warnings == [  # type: ignore[attr-defined]
        "Outputs without a value for each sample are not returned: mean: tensor of shape ()."
    ]


def test_outputs_without_samples_are_an_error() -> None:
    with pytest.raises(LoopError, match="^outputs: expected a value for each of the 2 samples of a batch, got outp"):
        collect(({"output": torch.ones(3)}, [0, 1]))


def test_outputs_of_some_batches_only_are_an_error() -> None:
    with pytest.raises(LoopError, match=r"^outputs: expected the same outputs for every batch, got a, b for some"):
        gather(({"a": torch.ones(1)}, [0]), ({"b": torch.ones(1)}, [1]))


def test_mapping_with_integers_as_keys_is_no_tuple() -> None:
    levels = gather(({1: torch.tensor([1.0]), 3: (torch.tensor([3.0]), torch.tensor([4.0]))}, [0]))
    assert levels == {1: torch.tensor([1.0]), 3: (torch.tensor([3.0]), torch.tensor([4.0]))}
