"""Tests of fingerprints."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus.testing import fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1, 2], [2, 1]),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
        (None, 0),
    ],
    ids=str,
)
def test_different_values_have_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_bitwise_identical_values_have_equal_fingerprints() -> None:
    value = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(2, 3), "c": torch.tensor(1.5, dtype=torch.bfloat16)}
    same = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(3, 2).reshape(2, 3), "c": value["c"].clone()}
    assert fingerprint(value) == fingerprint(same)
    assert fingerprint(torch.arange(6).reshape(2, 3).T) == fingerprint(torch.arange(6).reshape(2, 3).T.contiguous())
    assert fingerprint(torch.ones(1, requires_grad=True)) == fingerprint(torch.ones(1))
