"""Tests of the checks of data that was read from a file."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hookbus._utils.schema import (
    Check,
    InvalidDataError,
    boolean,
    either,
    file_name,
    integer,
    list_of,
    mapping_of,
    nullable,
    number,
    record,
    string,
    tuple_of,
)

NESTED = record({"a": integer()}, {"b": list_of(mapping_of(number()), 1, 2)})


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (boolean, True),
        (integer(), 0),
        (integer(-1, 1), -1),
        (number(), math.nan),
        (number(0), 2),
        (string("[a-z]*", 3), "abc"),
        (file_name, "epoch_3.pth"),
        (nullable(integer()), None),
        (either(integer(), string()), "x"),
        (tuple_of(integer(), string()), [1, "x"]),
        (NESTED, {"a": 1, "b": ({"x": 0.5},), "later": object()}),
    ],
)
def test_valid_value_is_accepted(check: Check, value: Any) -> None:
    check(value, "key")


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (boolean, 1, "key: expected true or false, got 1"),
        (integer(), True, "key: expected an integer from 0 to 9007199254740992, got True"),
        (integer(0, 3), 4, "key: expected an integer from 0 to 3, got 4"),
        (integer(0, 3), 1.0, "key: expected an integer from 0 to 3, got 1.0"),
        (integer(0, 3), 10**500, "key: expected an integer from 0 to 3, got an integer of 1661 bits"),
        (integer(0, 3), torch.ones(2, 3), "key: expected an integer from 0 to 3, got a Tensor of shape (2, 3)"),
        (number(0), -0.5, "key: expected a number >= 0, got -0.5"),
        (number(), "1", "key: expected a number, got '1'"),
        (number(), 10**400, "key: expected a number, got an integer of 1329 bits"),
        (number(finite=True), math.inf, "key: expected a finite number, got inf"),
        (tuple_of(integer(), string()), (1, 2), "key[1]: expected a string of at most 4096 characters, got 2"),
        (tuple_of(integer(), string()), [1], "key: expected a list of 2 to 2 entries, got 1 entries"),
        (string(maximum=5), "x" * 1000, f"key: expected a string of at most 5 characters, got '{'x' * 77}...'"),
        (string("[a-z]*"), "a\n", r"key: expected a string of the form [a-z]*, got 'a\n'"),
        (string(), "\ud800", r"key: expected a string of at most 4096 characters, got '\ud800'"),
        (file_name, "..", "key: expected a file name without a directory, got '..'"),
        (file_name, "a/b", "key: expected a file name without a directory, got 'a/b'"),
        (file_name, "a\0", r"key: expected a file name without a directory, got 'a\x00'"),
        (either(integer(), boolean), "x", "key: expected true or false, got 'x'"),
        (NESTED, [], "key: expected a mapping, got a list"),
        (NESTED, {}, "key.a: expected a value, got no such key"),
        (NESTED, {"a": 1, 2: 3}, "key: key: expected a string of at most 4096 characters, got 2"),
        (NESTED, {"a": 1, "b": {}}, "key.b: expected a list, got a dict"),
        (NESTED, {"a": 1, "b": []}, "key.b: expected a list of 1 to 2 entries, got 0 entries"),
        (NESTED, {"a": 1, "b": [{"\x1b[2J": ""}]}, r"key.b[0].'\x1b[2J': expected a number, got ''"),
    ],
)
def test_invalid_value_is_reported_with_its_key(check: Check, value: Any, message: str) -> None:
    with pytest.raises(InvalidDataError) as raised:
        check(value, "key")
    assert str(raised.value) == message
