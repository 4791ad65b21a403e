"""Tests of the conversion of names for backends."""

from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from hookbus._utils.redaction import escape_surrogates
from hookbus.writers.tags import flatten, sanitize_name

FORBIDDEN = re.compile(r"[^a-z/]")


def test_valid_name_is_unchanged() -> None:
    assert sanitize_name("val/loss", FORBIDDEN, 8) == "val/loss"


def test_forbidden_characters_are_replaced_and_a_hash_is_appended() -> None:
    digest = hashlib.sha256(b"acc,top").hexdigest()[:8]
    assert sanitize_name("acc,top", FORBIDDEN, 99) == f"acc_top-{digest}"


def test_long_name_is_truncated_and_a_hash_is_appended() -> None:
    assert re.fullmatch("x{11}-[0-9a-f]{8}", sanitize_name("x" * 300, FORBIDDEN, 20))


def test_empty_name_becomes_a_hash() -> None:
    assert sanitize_name("", FORBIDDEN, 99) == f"_-{hashlib.sha256(b'').hexdigest()[:8]}"


def test_lone_surrogates_are_escaped() -> None:
    assert escape_surrogates("größe \udce9😀") == "größe \\udce9😀"


@given(st.lists(st.text(), unique=True, max_size=20))
def test_sanitized_names_are_unique_and_short(names: list[str]) -> None:
    safe = {sanitize_name(name, FORBIDDEN, 30) for name in names}
    assert len(safe) == len(names)
    assert all(len(name) <= 30 for name in safe)


def test_nested_mapping_is_flattened() -> None:
    assert flatten({"a": {"b": 1, "c": [2, {"d": None}]}, "e": "f", "g": {}}) == {
        "a.b": 1,
        "a.c.0": 2,
        "a.c.1.d": None,
        "e": "f",
    }
