"""Tests of the notes of hook exceptions and of merged exceptions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from hookbus import Hook, HookBus
from hookbus._events.failure_records import FailureCounts, annotate, merge_exceptions
from hookbus._run.clock import Clock
from hookbus.errors import HookStopIterationError, HookWarning


class Watch(Hook):
    observer = True

    def after_train_iter(self) -> None: ...


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


MODULE = f"module {__name__}"


@pytest.fixture
def counts() -> FailureCounts:
    return FailureCounts()


def reported(counts: FailureCounts) -> list[str]:
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        counts.report()
    assert {entry.category for entry in caught_warnings} <= {HookWarning}
    return [str(entry.message) for entry in caught_warnings]


def test_consecutive_failures_are_counted_per_point(counts: FailureCounts) -> None:
    for message, point in (("one", "after_epoch"), ("two", "after_epoch"), ("three", "after_val")):
        record = counts.add(ValueError(message), "watch", Watch(), point)
    assert record.consecutive == {"after_epoch": 2, "after_val": 1}
    assert (record.first, record.package, record.count) == ("ValueError: one", MODULE, 3)


def test_success_resets_the_consecutive_failures_of_one_point(counts: FailureCounts) -> None:
    counts.add(ValueError(), "watch", Watch(), "after_epoch")
    record = counts.add(ValueError(), "watch", Watch(), "after_val")
    counts.succeed("watch", "after_epoch")
    counts.succeed("other", "after_epoch")
    assert record.consecutive == {"after_epoch": 0, "after_val": 1}
    assert record.count == 2


def test_listener_is_wrapped_only_after_a_failure_of_its_hook(counts: FailureCounts) -> None:
    bus: Any = HookBus([watch := Watch()])
    (listener,) = bus.table.listeners("after_train_iter", bus.current)
    assert counts.reset_on_success(listener) == watch.after_train_iter
    record = counts.add(ValueError(), "watch", watch, "after_train_iter")
    watched = counts.reset_on_success(listener)
    assert watched != watch.after_train_iter
    watched()
    assert record.consecutive == {"after_train_iter": 0}


def test_hook_is_disabled_until_it_is_unregistered(counts: FailureCounts) -> None:
    assert not counts.is_disabled("watch")
    record = counts.add(ValueError(), "watch", Watch(), "after_epoch")
    assert not counts.is_disabled("watch")
    record.disabled = "epoch 1, iteration 3"
    assert counts.is_disabled("watch")
    counts.pop("watch")
    assert not counts.is_disabled("watch")


def test_report_lists_disabled_hooks_and_repeated_failures_by_name(counts: FailureCounts) -> None:
    for hook in ("b", "b", "a", "once"):
        record = counts.add(ValueError(hook), hook, Watch(), "after_epoch")
        if hook == "a":
            record.disabled = "epoch 1, iteration 3"
    incomplete = "its results are incomplete. First failure: ValueError"
    assert reported(counts) == [
        f"hook 'a' ({MODULE}) failed 1 times, disabled since epoch 1, iteration 3; {incomplete}: a",
        f"hook 'b' ({MODULE}) failed 2 times; {incomplete}: b",
    ]
    assert reported(counts) == []
