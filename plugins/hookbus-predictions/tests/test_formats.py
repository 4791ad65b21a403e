"""Content of the files of each format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hookbus_predictions.formats import WRITERS
from hookbus_predictions.parts import iter_rows

INDEX = torch.tensor([0, 1, 2])
LOGITS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, float("nan")]])
PARTS: list[dict[str, Any]] = [
    {"index": INDEX[:2], "logits": LOGITS[:2], "label": torch.tensor([7, 8]), "name": ["a", "b"]},
    {"index": INDEX[2:], "logits": LOGITS[2:], "label": torch.tensor([9]), "name": ["ü,"]},
]
RAGGED: list[dict[str, Any]] = [
    {"index": INDEX[:1], "output": torch.ones(1, 2)},
    {"index": INDEX[1:2], "output": torch.zeros(1, 3)},
]


def write(directory: Path, suffix: str, parts: list[dict[str, Any]] = PARTS, count: int = 3) -> Path:
    path = directory / f"predictions{suffix}"
    WRITERS[suffix](path, parts, count)
    return path


@pytest.mark.parametrize("count", [3, 5])
def test_pt_contains_tensors_and_lists(tmp_path: Path, count: int) -> None:
    content = torch.load(write(tmp_path, ".pt", count=count), weights_only=True)
    assert list(content) == ["index", "logits", "label", "name"]
    assert torch.equal(content["index"], INDEX)
    assert torch.equal(content["logits"].nan_to_num(-1), LOGITS.nan_to_num(-1))
    assert content["label"].tolist() == [7, 8, 9]
    assert content["name"] == ["a", "b", "ü,"]


def test_pt_contains_samples_of_different_shapes_as_a_list(tmp_path: Path) -> None:
    content = torch.load(write(tmp_path, ".pt", RAGGED), weights_only=True)
    assert [sample.tolist() for sample in content["output"]] == [[1, 1], [0, 0, 0]]


def test_npz_contains_arrays(tmp_path: Path) -> None:
    with np.load(write(tmp_path, ".npz")) as content:
        assert content["index"].tolist() == [0, 1, 2]
        assert content["logits"].dtype == np.float32
        np.testing.assert_array_equal(content["logits"], LOGITS.numpy())
        assert content["name"].tolist() == ["a", "b", "ü,"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_npz_contains_types_that_numpy_lacks_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    parts = [{"index": INDEX, "output": torch.tensor([1.5, 2.5, 3.5], dtype=dtype)}]
    with np.load(write(tmp_path, ".npz", parts)) as content:
        assert content["output"].tolist() == [1.5, 2.5, 3.5]


def test_csv_has_a_column_for_each_number(tmp_path: Path) -> None:
    assert write(tmp_path, ".csv").read_text(encoding="utf-8").splitlines() == [
        "index,logits.0,logits.1,label,name",
        "0,1.0,2.0,7,a",
        "1,3.0,4.0,8,b",
        '2,5.0,nan,9,"ü,"',
    ]


def test_jsonl_has_an_object_for_each_sample(tmp_path: Path) -> None:
    assert [json.loads(line) for line in write(tmp_path, ".jsonl").read_text(encoding="utf-8").splitlines()] == [
        {"index": 0, "logits": [1.0, 2.0], "label": 7, "name": "a"},
        {"index": 1, "logits": [3.0, 4.0], "label": 8, "name": "b"},
        {"index": 2, "logits": [5.0, None], "label": 9, "name": "ü,"},
    ]


def test_parquet_has_a_column_for_each_output(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install pyarrow")
    table = parquet.read_table(write(tmp_path, ".parquet"))
    assert table.column("index").to_pylist() == [0, 1, 2]
    assert table.column("logits").to_pylist()[:2] == [[1.0, 2.0], [3.0, 4.0]]
    assert table.column("name").to_pylist() == ["a", "b", "ü,"]
    ragged = parquet.read_table(write(tmp_path, ".parquet", RAGGED))
    assert ragged.column("output").to_pylist() == [[1, 1], [0, 0, 0]]


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_samples_of_different_shapes_are_refused_by_tables(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(ValueError, match=f"the samples differ in shape, which {suffix} cannot contain. Choose .pt or"):
        write(tmp_path, suffix, RAGGED)


def test_objects_are_refused_by_npz(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="boxes: objects cannot be written to .npz. Choose .pt or .jsonl"):
        write(tmp_path, ".npz", [{"index": INDEX[:1], "boxes": [{"n": 1}]}])


def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    rows = {"index": torch.tensor([0]), "y": torch.tensor([1 + 2j])}
    with pytest.raises(ValueError, match=r"type complex cannot be written to \.jsonl\. Choose \.pt"):
        WRITERS[".jsonl"](tmp_path / "p.jsonl", [rows], 1)


def test_file_without_samples_has_the_column_of_the_indices(tmp_path: Path) -> None:
    paths = {suffix: write(tmp_path, suffix, list(iter_rows([[]])), 0) for suffix in (".pt", ".npz", ".csv", ".jsonl")}
    assert torch.load(paths[".pt"], weights_only=True)["index"].tolist() == []
    assert np.load(paths[".npz"])["index"].dtype == np.int64
    assert paths[".csv"].read_text().strip() == "index"
    assert paths[".jsonl"].read_text() == ""


def test_parquet_without_samples_has_the_column_of_the_indices(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install pyarrow")
    table = parquet.read_table(write(tmp_path, ".parquet", list(iter_rows([[]])), 0))
    assert (table.column_names, str(table.schema.field("index").type), len(table)) == (["index"], "int64", 0)
