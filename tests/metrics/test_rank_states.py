"""Means that a store restores from the average of the states of ranks."""

from __future__ import annotations

import pytest
import torch

from hookbus.metrics.rank_states import average_states
from hookbus.metrics.store import MetricStore


def make_store(rank: int, count: int, *, is_tensor: bool = False) -> MetricStore:
    """Return a store with the windows `epoch` and `late`, which begins at half of the logged losses."""
    store = MetricStore()
    for row in range(count):
        if row == count // 2:
            store.window("late").reset()
        loss = float(row * (rank + 1))
        store.log({"loss": torch.tensor(loss) if is_tensor else loss})
        store.row += 1
    return store


def restore(*stores: MetricStore) -> MetricStore:
    restored = MetricStore()
    restored.load_state_dict(average_states([store.state_dict() for store in stores]))
    return restored


@pytest.mark.parametrize("is_tensor", [False, True], ids=["floats", "tensors"])
@pytest.mark.parametrize("count", [4, 64, 150])
def test_means_are_those_over_all_ranks(count: int, is_tensor: bool) -> None:
    restored = restore(*(make_store(rank, count, is_tensor=is_tensor) for rank in (0, 1, 2)))

    # Rank r has logged i * (r + 1) in row i: on average twice the number of the row.
    assert restored.means(restored.epoch) == {"train/loss": pytest.approx(count - 1)}
    assert restored.means(restored.window("late"))["train/loss"] == pytest.approx(
        2 * sum(range(count // 2, count)) / (count - count // 2)
    )
    assert restored["train/loss"] == 2 * (count - 1)


def test_window_of_rank_0_alone_has_the_mean_of_the_current_chunk() -> None:
    first, second = make_store(0, 4), make_store(1, 4)
    first.window("logger").reset()
    for rank, store in enumerate((first, second)):
        store.log({"loss": 10.0 * rank})
    restored = restore(first, second)

    assert restored.means(restored.window("logger")) == {"train/loss": 5.0}


def test_metric_of_different_iterations_has_the_values_of_rank_0() -> None:
    first, second = make_store(0, 3), make_store(1, 3)
    second.log({"loss": 100.0})
    first.log({"only": 7.0})
    restored = restore(first, second)

    assert restored.means(restored.epoch) == {"train/loss": 1.0, "train/only": 7.0}


def test_nonfinite_values_of_any_rank_are_counted() -> None:
    first, second = MetricStore(), MetricStore()
    for row in range(70):
        first.log({"loss": 1.0})
        second.log({"loss": float("nan") if row == 3 else 1.0})
        first.row = second.row = row + 1
    restored = restore(first, second)

    assert restored.means(restored.epoch).nonfinite == {"train/loss": 1}
