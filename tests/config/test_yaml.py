"""Tests of the YAML 1.2 parser."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookbus._config.document import Document
from hookbus._config.yaml import MAX_NODES, dump, parse, parse_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 0.001),
        ("1.5", 1.5),
        ("3", 3),
        ("0o10", 8),
        ("010", 10),
        ("0x10", 16),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("'1'", "1"),
        ("[1, a]", [1, "a"]),
        ("{a: 1, b: {c: null}}", {"a": 1, "b": {"c": None}}),
        ("!!str 5", "5"),
    ],
)
def test_value_is_parsed_as_yaml_1_2(text: str, expected: Any) -> None:
    value = parse_value(text)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("text", ["[1", "!thing 1", "{a: 1, a: 2}", "# note", "*nobody", "!!int x"])
def test_invalid_value_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_value(text)


def test_comment_is_not_a_value() -> None:
    with pytest.raises(ValueError, match="the value is a comment in YAML, which starts with #. Quote the value."):
        parse_value("#fff")


class TestLocations:
    def test_keys_and_values_have_locations(self) -> None:
        document = parse("a: 1\nb:\n  - x\n  - {c: 2}\n", "f")
        assert document.data == {"a": 1, "b": ["x", {"c": 2}]}
        assert document.key_locations == {("a",): (1, 1), ("b",): (2, 1), ("b", 1, "c"): (4, 6)}
        assert document.value_locations == {
            (): (1, 1),
            ("a",): (1, 4),
            ("b",): (3, 3),
            ("b", 0): (3, 5),
            ("b", 1): (4, 5),
            ("b", 1, "c"): (4, 9),
        }

    def test_message_has_file_line_column_and_path(self) -> None:
        document = parse("a:\n  b: 1\n", "run.yaml")
        assert document.format_problem(("a", "b"), "wrong.") == "run.yaml:2:6: a.b: wrong."
        assert document.format_problem(("a", "b"), "wrong.", at_key=True) == "run.yaml:2:3: a.b: wrong."

    def test_missing_key_has_the_location_of_its_parent(self) -> None:
        document = parse("a:\n  b: 1\n", "run.yaml")
        assert document.format_problem(("a", "c", "d"), "missing.") == "run.yaml:2:3: a.c.d: missing."

    def test_override_is_the_location_of_its_value(self) -> None:
        document = Document("run.yaml", value_locations={(): (1, 1), ("a",): "a=1"})
        assert document.format_problem(("a",), "wrong.") == "command line: a=1: a: wrong."

    def test_data_without_a_file_have_no_location(self) -> None:
        assert Document("config", data={"a": 1}).format_problem(("a",), "wrong.") == "config: a: wrong."

    def test_merged_value_keeps_its_location(self) -> None:
        document = parse("base: &base\n  lr: 1\nown:\n  <<: *base\n  x: 2\n", "f")
        assert document.data["own"] == {"x": 2, "lr": 1}
        assert document.value_locations["own", "lr"] == (2, 7)


class TestMerging:
    def test_own_keys_and_first_source_take_precedence(self) -> None:
        text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b], y: 3}\n"
        assert parse(text, "f").data["c"] == {"y": 3, "x": 1, "z": 2}

    def test_merges_may_be_nested(self) -> None:
        assert parse("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b}\n", "f").data["c"] == {"y": 2, "x": 1}

    def test_only_mappings_are_merged(self) -> None:
        assert parse("a: &a 3\nb: {<<: *a}\n", "f").problems == ["f:1:4: b: << should refer to a mapping."]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f:1:1: the file is empty."),
        ("# only a comment\n", "f:1:1: the file is empty."),
        ("a:\n\tb: 1\n", "f:2:1: invalid YAML: tab character; indent and separate with spaces only."),
        (
            "a: [1, 2\nb: }\n",
            "f:2:2: invalid YAML: expected ',' or ']', but got ':'; the bracket is opened in line 1.",
        ),
        ("a: 1\nb:2\n\n\nc: 3\n", "f:2:1: invalid YAML: expected a colon and a space after the key."),
        ("a: 1\nb 2\n", "f:2:1: invalid YAML: expected a colon and a space after the key."),
        ("a: 1\nb: 'x\nc: 3\n", "f:2:4: invalid YAML: the quotation mark is not closed."),
        ("a: 1\na: 2\n", "f:2:1: a: duplicate key; the first is in line 1."),
        ("a: *nobody\n", "f:1:4: invalid YAML: found undefined alias 'nobody'."),
        ("a: &a [*a]\n", "f:1:4: a.0: the alias refers to a node that contains it."),
        ("a: &a {b: *a}\n", "f:1:4: a.b: the alias refers to a node that contains it."),
        ("a: &a {<<: *a}\n", "f:1:4: a: the alias refers to a node that contains it."),
        ("a: !!python/x y\n", "f:1:4: a: unsupported tag !!python/x. Remove it: a run file contains plain YAML."),
        ("a: !own 3\n", "f:1:4: a: unsupported tag !own. Remove it: a run file contains plain YAML."),
        ("a: !!binary aGk=\n", "f:1:4: a: unsupported tag !!binary. Remove it: a run file contains plain YAML."),
        ("a: !!int x\n", "f:1:4: a: 'x' cannot be parsed as !!int."),
        ("a: !!bool maybe\n", "f:1:4: a: 'maybe' cannot be parsed as !!bool."),
        ("a: !!float x\n", "f:1:4: a: 'x' cannot be parsed as !!float."),
        ("a: b: c\n", "f:1:5: invalid YAML: mapping values are not allowed here."),
        ("a: 1\nb: x\x00\n", "f:2:5: invalid YAML: the character U+0000 is not allowed."),
        ("[a]: 1\n", "f:1:1: a key should be a scalar, not a list or a mapping."),
        ("a: " + "[" * 100 + "]" * 100, "f:1:63: nested deeper than 60 levels."),
        ("a: " + "[" * 100_000, "f:1:63: nested deeper than 60 levels."),
    ],
    ids=lambda value: value[:30] if len(value) < 40 else None,
)  # fmt: skip
def test_error_has_a_location(text: str, problem: str) -> None:
    assert parse(text, "f").problems == [problem]


def test_second_document_is_an_error() -> None:
    assert parse("a: 1\n---\nb: 2\n", "f").problems == [
        "f:2:1: invalid YAML: expected a single document in the stream, but found another document."
    ]


def test_too_long_integer_is_an_error() -> None:
    (problem,) = parse(f"a: {'1' * 5000}", "f").problems
    assert problem == f"f:1:4: a: '{'1' * 79}…' cannot be parsed as !!int."


def test_integer_that_json_cannot_represent_is_an_error() -> None:
    (problem,) = parse(f"a: 0x{'f' * 5000}", "f").problems
    assert problem == f"f:1:4: a: integer of more than 1024 bits, got '0x{'f' * 77}…'."
    assert parse(f"a: 0x{'f' * 256}", "f").problems == []


@pytest.mark.slow
def test_time_to_parse_is_bounded_by_the_number_of_values() -> None:
    (problem,) = parse(f"a: [{'1,' * 500_000}]", "f").problems
    assert problem == "f:1:79999: more than 20000 values in one file; an alias counts each time it is used."


def test_all_errors_are_listed_and_the_rest_is_parsed() -> None:
    document = parse("a: !x 1\nb: 2\nb: 3\nc: !y 4\nd: 5\n", "f")
    assert [problem.split(":")[1] for problem in document.problems] == ["1", "3", "4"]
    assert document.data == {"a": None, "b": 2, "c": None, "d": 5}
    assert document.invalid_paths == {(), ("a",), ("c",)}


def test_keys_are_strings() -> None:
    assert list(parse("on: 1\n1e-3: 2\ntrue: 3\n~: 4\n", "f").data) == ["on", "1e-3", "true", "~"]


BOMBS = {
    "lists": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "mappings": "a: &a {x: 1}\n"
    + "".join(
        f"{b}: &{b} {{{', '.join(f'k{i}: *{a}' for i in range(9))}}}\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "merges": "a: &a {x: 1}\n"
    + "".join(f"{b}: &{b} {{<<: [{','.join(['*' + a] * 9)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_alias_bomb_is_an_error(text: str) -> None:
    tracemalloc.start()
    (problem,) = parse(text, "f").problems
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problem.endswith(f": more than {MAX_NODES} values in one file; an alias counts each time it is used.")
    assert peak < 50 * 2**20  # expanded, the document has 9**9 = 387 million values


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
@example(["a\x85b", "\u2028", "\ufeff", " x\n y ", "<<", "1e-3", "null", "2001-01-01", "#", "a: b"])
def test_dump_round_trip_preserves_data(data: Any) -> None:
    document = parse(dump({"data": data}), "f")
    assert document.problems == []
    assert document.data == {"data": data}
    assert repr(document.data) == repr({"data": data})


def test_dump_preserves_the_order_of_keys() -> None:
    assert dump({"b": 1, "a": {"d": [1], "c": "on"}}) == "b: 1\na:\n  d:\n  - 1\n  c: on\n"
