"""Tests of values in messages."""

from __future__ import annotations

import pytest

from hookbus._utils.values import escape_control_characters, format_value, shorten


class BrokenRepr:
    def __repr__(self) -> str:
        raise RuntimeError


class LinesRepr:
    def __repr__(self) -> str:
        return "first\n  second\x1b[31m"


def test_long_text_ends_with_an_ellipsis() -> None:
    assert (shorten("abcd", 4), shorten("abcde", 4)) == ("abcd", "abc…")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 80, repr("a" * 80)),
        ("a" * 81, f"'{'a' * 79}…'"),
        (b"a" * 900_000, f"b'{'a' * 79}…'"),
        ([0] * 20_000, f"[{'0, ' * 26}…"),
        ("a\n\x1b[31m\ud800", r"'a\n\x1b[31m\ud800'"),
        (LinesRepr(), r"first second\x1b[31m"),
        (BrokenRepr(), "<BrokenRepr>"),
        ({"a": 1}, "{'a': 1}"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else None,
)
def test_value_is_one_short_printable_line(value: object, text: str) -> None:
    assert format_value(value) == text


def test_nested_value_without_a_repr_is_shown_by_its_type() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert format_value(nested) == "<list>"


def test_control_characters_are_escaped_except_the_kept_ones() -> None:
    assert escape_control_characters("ä\x07\n\u202e", keep="\n") == "ä\\x07\n\\u202e"
