"""Tests of the reading of run files and of their error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel, ValidationError

from hookbus._config.diagnostics import (
    format_errors,
    hook_entries,
    resolve_aliases,
    sort_by_location,
    to_yaml_terms,
)
from hookbus._config.document import Document
from hookbus._config.yaml import parse

if TYPE_CHECKING:
    from tests.conftest import Environment


class Inner(BaseModel):
    size: int


class Model(BaseModel):
    either: int | Inner | None = None
    inner: Inner | None = None
    hooks: list[dict[str, int]] = []


def get_errors(text: str) -> list[str]:
    document = parse(text, "f")
    entries = hook_entries(document)
    data = {**document.data, "hooks": [entry for entry, _ in entries or []]}
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(data, strict=True)
    return format_errors(Model, document, data, entries, caught.value)


class TestMessages:
    def test_messages_of_union_branches_are_merged(self) -> None:
        assert get_errors("either: x\n") == [
            "f:1:9: either: should be a valid integer or a mapping or instance of Inner, got 'x'."
        ]

    def test_deepest_union_branch_is_reported(self) -> None:
        assert get_errors("either: {size: x}\n") == ["f:1:16: either.size: should be a valid integer, got 'x'."]

    def test_missing_key_is_reported_at_its_section(self) -> None:
        assert get_errors("inner: {}\n") == ["f:1:8: inner.size: required, but missing."]

    def test_hook_of_a_mapping_is_reported_by_name(self) -> None:
        (problem,) = get_errors("hooks:\n  a: 1\n")
        assert problem.startswith("f:2:6: hooks.a: should be a mapping")

    def test_unparsable_value_is_not_reported_again(self) -> None:
        assert get_errors("inner: {size: !no 3}\neither: x\n") == [
            "f:2:9: either: should be a valid integer or a mapping or instance of Inner, got 'x'."
        ]

    def test_pydantic_terms_are_replaced_by_yaml_terms(self) -> None:
        assert to_yaml_terms("should be an object, got None.") == "should be a mapping, got null."
        assert to_yaml_terms("should be a valid array, got True.") == "should be a list, got true."


class TestHookEntries:
    def test_hooks_are_converted_to_a_list_with_paths(self) -> None:
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


class TestAliases:
    def test_renamed_key_keeps_its_location(self) -> None:
        document = parse("seed: 1\nexperiment_dir: x\n", "f")
        resolve_aliases(document)
        assert document.data == {"seed": 1, "work_dir": "x"}
        assert document.format_problem(("work_dir",), "no.", at_key=True) == "f:2:1: work_dir: no."


class TestOrder:
    def test_messages_are_sorted_without_duplicates(self) -> None:
        document = Document("a:b")
        messages = ["command line: x", "a:b:10:1: z", "a:b:9:2: y", "a:b:9:10: x", "a:b:10:1: z"]
        assert sort_by_location(document, messages) == ["a:b:9:2: y", "a:b:9:10: x", "a:b:10:1: z", "command line: x"]


@pytest.mark.slow
def test_blocked_hook_of_a_run_file_is_skipped_with_a_warning(environment: Environment) -> None:
    script = """
        import warnings
        from hookbus import load_config
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config = load_config({"hooks": ["greet", {"type": "twin-one/twin"}]})
        answer = [config.hooks, [str(warning.message) for warning in caught]]
    """
    assert environment.answer(script, HOOKBUS_BLOCK="GreetHook") == [
        [{"type": "twin-one/twin"}],
        ["config: hooks.0: 'greet' is skipped because of HOOKBUS_BLOCK=GreetHook."],
    ]
