"""Tests of the notes of hook exceptions and of merged exceptions."""

from __future__ import annotations

import pytest

from hookbus._events.failure_notes import annotate, merge_exceptions
from hookbus._run.clock import Clock
from hookbus.errors import HookStopIterationError


class Watch:
    """Plugin that is not a Hook."""


def test_note_contains_hook_package_point_and_position() -> None:
    error = ValueError("no")
    assert annotate(error, "watch", Watch(), "after_train_iter", Clock()) is error
    where = "at after_train_iter, epoch 1, iteration 1"
    assert error.__notes__ == [f"raised by hook 'watch' (module {__name__}) {where}"]


def test_stop_iteration_is_replaced_by_hook_stop_iteration_error() -> None:
    error = StopIteration("done")
    replaced = annotate(error, "watch", Watch(), "after_train_iter", Clock())
    assert isinstance(replaced, HookStopIterationError)
    assert str(replaced).startswith("StopIteration raised by hook 'watch'")
    assert str(replaced).endswith("Raise another exception type.")
    assert not hasattr(error, "__notes__")


def test_single_exception_is_not_wrapped() -> None:
    error = ValueError("no")
    assert merge_exceptions([error], "cleanup") is error


def test_multiple_exceptions_are_merged_into_a_group() -> None:
    errors = [ValueError("no"), KeyError("key")]
    merged = merge_exceptions(errors, "cleanup")
    assert isinstance(merged, ExceptionGroup)
    assert merged.message == "2 hooks failed at cleanup"
    assert list(merged.exceptions) == errors


@pytest.mark.parametrize("exit_request", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_exit_request_is_raised_with_the_other_exceptions_as_notes(exit_request: BaseException) -> None:
    assert merge_exceptions([ValueError("no"), exit_request, KeyboardInterrupt("again")], "cleanup") is exit_request
    assert exit_request.__notes__ == ["also raised: ValueError: no", "also raised: KeyboardInterrupt: again"]
    del exit_request.__notes__
