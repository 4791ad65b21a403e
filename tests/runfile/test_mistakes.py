"""How a run file is read, and how its mistakes are worded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel, ValidationError

from hookbus.errors import ConfigError
from hookbus.runfile.mistakes import document_of, hook_entries, in_order, in_yaml_words, sentences, settle_spelling
from hookbus.runfile.yaml import Document, read

if TYPE_CHECKING:
    from tests.conftest import Project


class Inner(BaseModel):
    size: int


class Model(BaseModel):
    either: int | Inner | None = None
    inner: Inner | None = None
    hooks: list[dict[str, int]] = []


def wrong(text: str) -> list[str]:
    document = read(text, "f")
    entries = hook_entries(document)
    data = {**document.data, "hooks": [entry for entry, _ in entries or []]}
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(data, strict=True)
    return sentences(Model, document, data, entries, caught.value)


class TestWording:
    def test_the_branches_of_a_union_become_one_sentence(self) -> None:
        assert wrong("either: x\n") == [
            "f:1:9: either: should be a valid integer or a mapping or instance of Inner, got 'x'."
        ]

    def test_the_branch_that_got_furthest_counts(self) -> None:
        assert wrong("either: {size: x}\n") == ["f:1:16: either.size: should be a valid integer, got 'x'."]

    def test_what_is_missing_is_told_where_it_should_stand(self) -> None:
        assert wrong("inner: {}\n") == ["f:1:8: inner.size: required, but missing."]

    def test_a_hook_of_a_mapping_is_told_by_its_name(self) -> None:
        (problem,) = wrong("hooks:\n  a: 1\n")
        assert problem.startswith("f:2:6: hooks.a: should be a mapping")

    def test_what_could_not_be_read_is_told_once(self) -> None:
        assert wrong("inner: {size: !no 3}\neither: x\n") == [
            "f:2:9: either: should be a valid integer or a mapping or instance of Inner, got 'x'."
        ]

    def test_pydantics_words_are_put_into_those_of_the_file(self) -> None:
        assert in_yaml_words("should be an object, got None.") == "should be a mapping, got null."
        assert in_yaml_words("should be a valid array, got True.") == "should be a list, got true."


class TestHookEntries:
    def test_every_way_to_write_hooks_becomes_a_list_with_places(self) -> None:
        assert hook_entries(Document("f", {"hooks": ["ema", {"type": "x"}]})) == [
            ({"type": "ema"}, ("hooks", 0)),
            ({"type": "x"}, ("hooks", 1)),
        ]
        assert hook_entries(Document("f", {"hooks": {"a": {"type": "x"}, "b": {}, "c": None, "d": 5}})) == [
            ({"type": "x", "name": "a"}, ("hooks", "a")),
            ({"type": "b", "name": "b"}, ("hooks", "b")),
            ({"type": "c", "enabled": False}, ("hooks", "c")),
            (5, ("hooks", "d")),
        ]
        assert hook_entries(Document("f", {})) == []
        assert hook_entries(Document("f", {"hooks": 5})) is None


class TestSpelling:
    def test_a_renamed_key_keeps_its_place(self) -> None:
        document = read("seed: 1\nexperiment_dir: x\n", "f")
        settle_spelling(document)
        assert document.data == {"seed": 1, "work_dir": "x"}
        assert document.problem(("work_dir",), "no.", at_key=True) == "f:2:1: work_dir: no."


class TestOrder:
    def test_problems_come_in_the_order_of_the_file_and_once(self) -> None:
        document = Document("a:b")
        given = ["command line: x", "a:b:10:1: z", "a:b:9:2: y", "a:b:9:10: x", "a:b:10:1: z"]
        assert in_order(document, given) == ["a:b:9:2: y", "a:b:9:10: x", "a:b:10:1: z", "command line: x"]


class TestDocuments:
    def test_a_mapping_is_copied_with_plain_values(self) -> None:
        inner = [1, 2]
        document = document_of({"a": inner, "b": (Path("x"),), 3: None})
        assert document.data == {"a": [1, 2], "b": ["x"], "3": None}
        assert document.data["a"] is not inner

    def test_what_is_no_plain_value_is_told_with_its_path(self) -> None:
        with pytest.raises(ConfigError, match=r"^config: a\.0: the character U\+0000 cannot stand here"):
            document_of({"a": ["x\0"]})
        with pytest.raises(ConfigError, match=r"^config: a\.0\.b: <object object at .*> should be a built-in type"):
            document_of({"a": [{"b": object()}]})

    def test_a_file_that_cannot_be_read_is_told(self, project: Project) -> None:
        with pytest.raises(ConfigError, match="^no.yaml: the run file cannot be read: No such file or directory.$"):
            document_of("no.yaml")
