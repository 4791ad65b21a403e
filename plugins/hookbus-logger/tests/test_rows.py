"""Tests of the conversion of logged values to numbers and strict JSON."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus_logger.rows import KINDS, get_sort_key, has_equal_content, to_json, to_number, to_scalar_fields


def parse_strict_json(text: str) -> Any:
    def reject(constant: str) -> NoReturn:
        raise ValueError(constant)

    return json.loads(text, parse_constant=reject)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        (0.5, 0.5),
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(False), 0),
        (np.array([[2.5]]), 2.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([3]), 3),
        (torch.tensor(True), 1),
        (torch.tensor(0.1, dtype=torch.bfloat16), 0.10009765625),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (Fraction(1, 4), 0.25),
    ],
)
def test_to_number_converts_any_single_number(value: Any, number: float) -> None:
    converted = to_number(value)

    assert converted == number
    assert type(converted) is type(number)


@pytest.mark.parametrize("value", ["0.5", None, [1.0], 1 + 2j, torch.zeros(2), np.zeros(2), torch.zeros(0)])
def test_scalar_fields_omit_and_report_a_non_number(value: Any) -> None:
    fields, problems = to_scalar_fields({"good": 1.0, "bad": value})

    assert fields == {"values": {"good": 1.0}}
    assert problems == [f"'bad' must be a single number, got {type(value).__name__}"]


def test_scalar_fields_convert_nonfinite_values_to_null() -> None:
    fields, problems = to_scalar_fields({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}, {"a": 2})

    assert fields == {
        "values": {"a": None, "b": None, "c": None, "d": 1.0},
        "nonfinite": {"a": "nan", "b": "inf", "c": "-inf"},
        "nonfinite_counts": {"a": 2},
    }
    assert problems == []


@given(st.dictionaries(st.text(), st.floats() | st.integers() | st.booleans()))
def test_scalar_fields_are_strict_json(values: dict[str, float]) -> None:
    fields, _ = to_scalar_fields(values)

    parsed = parse_strict_json(json.dumps(fields, allow_nan=False))

    expected = {name: value if math.isfinite(value) else None for name, value in values.items()}
    assert parsed["values"] == expected
    assert set(parsed.get("nonfinite", {})) == {name for name, value in values.items() if not math.isfinite(value)}


def test_scalar_fields_convert_names_and_report_numbers_out_of_range() -> None:
    fields, problems = to_scalar_fields({0: 0.5, "a": 1, "big": 10**400})

    assert fields == {"values": {"0": 0.5, "a": 1}}
    assert problems == ["'big' exceeds the range of a float"]


def test_to_json_converts_a_configuration_to_strict_json() -> None:
    config = {
        "model": {"lr": 0.1, "path": Path("runs/x")},
        "betas": (0.9, math.inf),
        3: {Path("a")},
        "on": True,
        "none": None,
    }

    assert parse_strict_json(json.dumps(to_json(config), allow_nan=False)) == {
        "model": {"lr": 0.1, "path": "runs/x"},
        "betas": [0.9, "inf"],
        "3": ["a"],
        "on": True,
        "none": None,
    }


def test_sort_key_of_rows_is_by_kind_and_then_by_name() -> None:
    rows = [{"kind": kind, "values": {name: 1}} for kind in KINDS[:-1] for name in "ab"]
    rows += [{"kind": "text", "tag": tag} for tag in "ab"]

    rows.reverse()
    assert sorted(rows, key=get_sort_key) == rows[::-1]


@pytest.mark.parametrize(
    "row", [{}, {"kind": []}, {"kind": "x", "values": 3, "tag": {}}, {"kind": None, "values": [1]}]
)
def test_sort_key_of_an_invalid_row_is_the_last(row: dict[str, Any]) -> None:
    assert get_sort_key(row) == (len(KINDS), [], "")


def test_configurations_are_equal_if_they_differ_in_the_resume_only() -> None:
    row = {"config": {"lr": 0.1, "resume": "never"}}

    assert has_equal_content(row, {"config": {"lr": 0.1, "resume": "auto"}, "time": 3})
    assert not has_equal_content(row, {"config": {"lr": 0.2, "resume": "never"}})
    assert not has_equal_content(row, {"config": None})
