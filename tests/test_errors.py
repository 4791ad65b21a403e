"""Tests of the exception hierarchy and of hints for unknown names."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pytest

from hookbus import errors
from hookbus.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    ConfigError,
    HookbusError,
    HookStopIterationError,
    HookWarning,
    MetricError,
    ServiceError,
    add_failure_notes,
    format_error,
    format_error_first_line,
    format_path,
    limit_lines,
    omit_hints,
    suggest_names,
)

EXCEPTIONS = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, HookbusError)]


def documented_tree() -> dict[str, str]:
    """Return the parent of each class in the diagram of the module docstring."""
    parents: dict[int, str] = {0: "HookbusError"}
    tree = {}
    for line in (errors.__doc__ or "").splitlines():
        branch = re.match(r"    ([│ ]*)[├└]── (\w+)", line)
        if branch:
            depth = len(branch[1]) // 4 + 1
            tree[branch[2]] = parents[depth - 1]
            parents[depth] = branch[2]
    return tree


def test_module_docstring_shows_the_class_hierarchy() -> None:
    bases = {cls.__name__: cls.__bases__[0].__name__ for cls in EXCEPTIONS}
    assert documented_tree() | {"HookbusError": "Exception"} == bases


@pytest.mark.parametrize("exception", EXCEPTIONS)
def test_every_exception_is_public_and_documented(exception: type[HookbusError]) -> None:
    assert exception.__name__ in errors.__all__
    assert exception.__doc__


def test_exceptions_derive_from_builtin_types() -> None:
    assert issubclass(ServiceError, LookupError)
    assert issubclass(MetricError, KeyError)
    assert issubclass(HookStopIterationError, RuntimeError)
    assert issubclass(CheckpointCorruptedError, CheckpointError)
    assert issubclass(HookWarning, UserWarning)


def test_config_error_lists_every_problem() -> None:
    error = ConfigError(problem for problem in ("a.yaml:1:2: seed: no.", "a.yaml:3:4: epochs: no."))
    assert error.problems == ["a.yaml:1:2: seed: no.", "a.yaml:3:4: epochs: no."]
    assert str(error) == "a.yaml:1:2: seed: no.\na.yaml:3:4: epochs: no."


def test_config_error_accepts_a_single_message() -> None:
    error = ConfigError("a.yaml:1:2: seed: no.")
    assert error.problems == ["a.yaml:1:2: seed: no."]
    assert str(error) == "a.yaml:1:2: seed: no."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad luck\n  in two lines\n"), "ValueError: bad luck in two lines"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (RuntimeError("  "), "RuntimeError"),
    ],
)
def test_error_on_one_line_has_type_and_message(error: BaseException, line: str) -> None:
    assert format_error(error) == line


def test_error_without_message_is_shown_by_its_type() -> None:
    assert [format_error_first_line(error) for error in (ValueError(), ValueError(" a\nb"))] == [
        "ValueError",
        "ValueError: a",
    ]


def test_additional_failures_are_notes_of_the_error() -> None:
    first, error = ValueError("first"), KeyboardInterrupt()
    first.add_note("raised by hook 'a'")
    add_failure_notes(error, [ExceptionGroup("two", [first, TypeError("a\nb")]), OSError()])
    assert error.__notes__ == [
        "also raised: ValueError: first (raised by hook 'a')",
        "also raised: TypeError: a b",
        "also raised: OSError",
    ]


def test_metric_error_shows_its_message() -> None:
    assert str(MetricError("Unknown metric 'acc'.")) == "Unknown metric 'acc'."
    assert str(MetricError()) == ""


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("patiense", ["patience", "monitor"], " Did you mean 'patience'?"),
        ("val_los", ["val_loss", "val_losses", "step"], " Did you mean 'val_loss' or 'val_losses'?"),
        ("intervall", ["interval", "logging_interval"], " Did you mean 'interval'?"),
        ("zzz", ["b", "a", "b"], " Available: a, b."),
        ("zzz", [], ""),
    ],
)
def test_hint_lists_close_matches_or_all_names(name: str, known: list[str], end: str) -> None:
    assert suggest_names(name, known) == end


def test_broken_str_does_not_hide_the_error() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert format_error(BrokenError()) == "BrokenError: (message not available: __str__ raised ValueError)"


def test_hint_of_many_names_is_short() -> None:
    names = [f"metric_{i:05}" for i in range(20_000)]
    assert suggest_names("metrik_00123", names).startswith(" Did you mean 'metric_")
    listed = suggest_names("zzz", names)
    assert listed.endswith(", metric_00039 and 19,960 more.")


def test_long_names_are_neither_compared_nor_listed() -> None:
    assert suggest_names("a" * 101, ["a" * 100]) == f" Available: {'a' * 100}."
    assert suggest_names("b", ["a" * 101]) == ""


def test_hints_can_be_omitted() -> None:
    with omit_hints():
        assert suggest_names("epocs", ["epochs"]) == ""
    assert suggest_names("epocs", ["epochs"]) == " Did you mean 'epochs'?"


class TestLimitLines:
    def test_fifty_lines_are_complete(self) -> None:
        lines = [str(i) for i in range(50)]
        assert limit_lines(lines) == lines

    @pytest.mark.parametrize(("count", "last"), [(51, "and 1 more error."), (20_000, "and 19,950 more errors.")])
    def test_further_lines_are_counted(self, count: int, last: str) -> None:
        lines = [str(i) for i in range(count)]
        assert limit_lines(lines) == [*lines[:50], last]

    def test_messages_of_several_lines_count_by_their_lines(self) -> None:
        assert limit_lines(["a\nb"] * 30) == [*["a\nb"] * 25, "and 5 more errors."]
        assert limit_lines(["a\n" * 60]) == [*["a"] * 50, "..."]

    def test_configuration_error_lists_all_problems_and_shows_fifty(self) -> None:
        error = ConfigError(str(i) for i in range(60))
        assert len(error.problems) == 60
        assert str(error).splitlines()[49:] == ["49", "and 10 more errors."]


@pytest.mark.parametrize("path", ["runs/x", "a b.txt", "données/学习", Path("/tmp/it's")], ids=str)
def test_printable_path_is_shown_unchanged(path: str | Path) -> None:
    assert format_path(path) == str(path)


def test_path_inside_the_current_directory_is_shown_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert format_path(tmp_path / "runs/x") == "runs/x"
    assert format_path(tmp_path) == str(tmp_path)
    assert format_path(f"{tmp_path}-2/x") == f"{tmp_path}-2/x"


def test_path_is_shown_unchanged_if_the_current_directory_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x").rmdir()
    assert format_path(tmp_path / "x/y") == str(tmp_path / "x/y")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a\x1b[2Jb", r"'a\x1b[2Jb'"),
        (Path("runs/a\nb"), r"'runs/a\nb'"),
        ("a\0b", r"'a\x00b'"),
        (os.fsdecode(b"a\xff"), r"'a\udcff'"),
        ("a\u202eb", r"'a\u202eb'"),
        ("a\x9b2J", r"'a\x9b2J'"),
    ],
)
def test_path_with_unprintable_characters_is_escaped(path: str | Path, shown: str) -> None:
    assert format_path(path) == shown
