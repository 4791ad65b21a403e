"""Order of the rows of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookbus_predictions.parts import Part, build_rows, iter_rows, load_parts, save_part, save_parts


def save(directory: Path, *batches: list[int], counted: bool = False) -> list[Part]:
    """Return the parts of batches whose outputs are ten times the indices."""
    directory.mkdir(parents=True, exist_ok=True)
    return [
        save_part(
            directory / f"{number}.pt",
            build_rows(batch, {("output",): torch.tensor(batch) * 10}),
            counted=counted,
        )
        for number, batch in enumerate(batches)
    ]


def read(*ranks: list[Part]) -> list[tuple[list[int], list[int]]]:
    return [(rows["index"].tolist(), rows["output"].tolist()) for rows in iter_rows(ranks)]


def test_ascending_batches_of_ranks_are_read_one_by_one(tmp_path: Path) -> None:
    first, second = save(tmp_path / "0", [0, 1], [4]), save(tmp_path / "1", [2, 3])
    assert read(first, second) == [([0, 1], [0, 10]), ([2, 3], [20, 30]), ([4], [40])]


def test_other_batches_are_sorted_at_once(tmp_path: Path) -> None:
    assert read(save(tmp_path, [3, 0], [2, 1])) == [([0, 1, 2, 3], [0, 10, 20, 30])]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(st.permutations(range(8)), st.integers(1, 4), st.integers(1, 3))
def test_rows_of_every_order_and_division_are_sorted(tmp_path: Path, order: list[int], size: int, ranks: int) -> None:
    batches = [order[start : start + size] for start in range(0, 8, size)]
    parts = [save(tmp_path / str(rank), *batches[rank::ranks]) for rank in range(ranks)]
    indices = [index for rows in iter_rows(parts) for index in rows["index"].tolist()]
    assert indices == list(range(8))


def test_sample_that_two_ranks_have_predicted_is_read_once(tmp_path: Path) -> None:
    assert read(save(tmp_path / "0", [0, 2]), save(tmp_path / "1", [1, 0])) == [([0, 1, 2], [0, 10, 20])]


def test_sample_that_one_rank_has_predicted_twice_is_kept(tmp_path: Path) -> None:
    assert read(save(tmp_path, [1, 0, 1])) == [([0, 1, 1], [0, 10, 10])]


def test_counted_indices_continue_on_the_next_rank(tmp_path: Path) -> None:
    first, second = save(tmp_path / "0", [0, 1], [2], counted=True), save(tmp_path / "1", [0, 1], counted=True)
    assert read(first, second) == [([0, 1], [0, 10]), ([2], [20]), ([3, 4], [0, 10])]


def test_nested_names_are_joined() -> None:
    columns: Any = {("states", 0): torch.ones(1), ("states", "last"): ["a"]}
    assert list(build_rows([5], columns)) == ["index", "states.0", "states.last"]


def test_output_with_the_name_of_the_indices_is_an_error() -> None:
    with pytest.raises(ValueError, match="an output has the name 'index' of the sample indices, got index"):
        build_rows([0], {("index",): torch.ones(1)})


def test_list_of_the_parts_is_restored_from_the_directory(tmp_path: Path) -> None:
    parts = save(tmp_path, [3, 1], [], [4, 5], counted=True)
    save_parts(tmp_path, parts)
    assert load_parts(tmp_path) == parts


@pytest.mark.parametrize("count", [3, 100_000])
def test_full_disk_is_an_error_of_the_file(count: int) -> None:
    rows = build_rows(range(count), {("output",): torch.zeros(count)})
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        save_part(Path("/dev/full"), rows, counted=True)
