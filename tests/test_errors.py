"""The exception tree and the ends of messages about wrong names."""

from __future__ import annotations

import inspect
import re

import pytest

from hookbus import errors
from hookbus.errors import (
    CheckpointDamaged,
    CheckpointError,
    ConfigError,
    HookbusError,
    HookFailure,
    HookWarning,
    MetricError,
    ServiceError,
    did_you_mean,
    first_line,
    in_one_line,
    note_besides,
)

EXCEPTIONS = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, HookbusError)]


def drawn_tree() -> dict[str, str]:
    """Child and parent of every branch in the drawing at the top of the module."""
    parents: dict[int, str] = {0: "HookbusError"}
    tree = {}
    for line in (errors.__doc__ or "").splitlines():
        branch = re.match(r"    ([│ ]*)[├└]── (\w+)", line)
        if branch:
            depth = len(branch[1]) // 4 + 1
            tree[branch[2]] = parents[depth - 1]
            parents[depth] = branch[2]
    return tree


def test_the_drawing_shows_every_exception_under_its_base() -> None:
    bases = {each.__name__: each.__bases__[0].__name__ for each in EXCEPTIONS}
    assert drawn_tree() | {"HookbusError": "Exception"} == bases


@pytest.mark.parametrize("exception", EXCEPTIONS)
def test_every_exception_is_public_and_says_when_it_is_raised(exception: type[HookbusError]) -> None:
    assert exception.__name__ in errors.__all__
    assert exception.__doc__


def test_people_who_know_the_builtin_kind_catch_it_by_that() -> None:
    assert issubclass(ServiceError, LookupError)
    assert issubclass(MetricError, KeyError)
    assert issubclass(HookFailure, RuntimeError)
    assert issubclass(CheckpointDamaged, CheckpointError)
    assert issubclass(HookWarning, UserWarning)


def test_a_config_error_lists_every_problem() -> None:
    error = ConfigError(problem for problem in ("a.yaml:1:2: seed: no.", "a.yaml:3:4: epochs: no."))
    assert error.problems == ["a.yaml:1:2: seed: no.", "a.yaml:3:4: epochs: no."]
    assert str(error) == "a.yaml:1:2: seed: no.\na.yaml:3:4: epochs: no."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad luck\n  in two lines\n"), "ValueError: bad luck in two lines"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (RuntimeError("  "), "RuntimeError"),
    ],
)
def test_an_error_in_one_line_has_its_kind_and_its_text_if_any(error: BaseException, line: str) -> None:
    assert in_one_line(error) == line


def test_an_error_that_says_nothing_is_told_by_its_type() -> None:
    assert [first_line(each) for each in (ValueError(), ValueError(" a\nb"))] == ["ValueError", "ValueError: a"]


def test_what_failed_besides_is_noted_one_by_one_with_its_own_notes() -> None:
    first, error = ValueError("first"), KeyboardInterrupt()
    first.add_note("raised by hook 'a'")
    note_besides(error, [ExceptionGroup("two", [first, TypeError("a\nb")]), OSError()])
    assert error.__notes__ == [
        "also raised: ValueError: first (raised by hook 'a')",
        "also raised: TypeError: a b",
        "also raised: OSError",
    ]


def test_a_metric_error_shows_its_sentence_and_not_the_repr_of_it() -> None:
    assert str(MetricError("There is no metric 'acc'.")) == "There is no metric 'acc'."
    assert str(MetricError()) == ""


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("patiense", ["patience", "monitor"], " Did you mean 'patience'?"),
        ("val_los", ["val_loss", "val_losses", "step"], " Did you mean 'val_loss' or 'val_losses'?"),
        ("zzz", ["b", "a", "b"], " Available: a, b."),
        ("zzz", [], ""),
    ],
)
def test_a_wrong_name_is_answered_with_near_ones_else_with_all(name: str, known: list[str], end: str) -> None:
    assert did_you_mean(name, known) == end


def test_a_text_that_cannot_be_had_hides_no_error() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert in_one_line(Broken()) == "Broken: (its text cannot be had: ValueError)"
