"""Combination of several errors into one."""

from __future__ import annotations

import pytest

from hookbus._utils.combined_errors import combine_errors, replace_message
from hookbus.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    ConfigError,
    HookbusError,
    LoopError,
    MetricError,
    RejectedRecordsError,
    WorkDirError,
)


class FieldsError(CheckpointError):
    """Error of a package, with a constructor of its own."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


def test_single_error_is_returned_unchanged() -> None:
    error = FieldsError("a.pth", "gone")
    assert combine_errors([error]) is error


def test_problems_of_config_errors_are_joined() -> None:
    combined = combine_errors([ConfigError(["a", "b"]), ConfigError(["c"])])
    assert isinstance(combined, ConfigError)
    assert combined.problems == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("errors", "common"),
    [
        ([LoopError("a"), LoopError("b")], LoopError),
        ([CheckpointError("a"), CheckpointCorruptedError("b")], CheckpointError),
        ([CheckpointCorruptedError("a"), CheckpointError("b")], CheckpointError),
        ([FieldsError("a", "x"), FieldsError("b", "x")], CheckpointError),
        ([MetricError("a"), MetricError("b")], MetricError),
        ([ConfigError(["a"]), WorkDirError("b")], HookbusError),
    ],
)
def test_combined_error_has_the_most_specific_common_type(
    errors: list[HookbusError], common: type[HookbusError]
) -> None:
    combined = combine_errors(errors)
    assert type(combined) is common
    assert str(combined).splitlines() == [str(error) for error in errors]


def test_combined_error_has_the_notes_of_its_parts() -> None:
    first, second = LoopError("a"), ConfigError(["b"])
    second.add_note("in hook 'x'")
    assert combine_errors([first, second]).__notes__ == ["in hook 'x'"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(LoopError("a"), LoopError), (FieldsError("a", "b"), CheckpointError)],
)
def test_error_with_another_message_keeps_its_type(error: HookbusError, expected: type[HookbusError]) -> None:
    replaced = replace_message(error, "hook 'x': a")
    assert (type(replaced), str(replaced)) == (expected, "hook 'x': a")


def test_error_with_further_arguments_becomes_its_base_class() -> None:
    replaced = replace_message(RejectedRecordsError("a", ["loss"]), "b")
    assert (type(replaced).__name__, str(replaced)) == ("HookError", "b")
