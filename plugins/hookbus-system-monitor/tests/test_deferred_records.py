"""Tests of the alignment of records to optimizer steps."""

import pytest

from hookbus import every, hookimpl
from hookbus_system_monitor.deferred_records import MonitorHook

from .toys import Writer, accumulate


class ScriptedHook(MonitorHook):
    """Log the next of the given values, and the next one after training."""

    priority = 0

    def __init__(self, values):
        super().__init__()
        self.remaining = list(values)

    def collect_values(self, run):
        return self.remaining.pop(0)

    def after_train(self, run):
        self._record(run)


class ScriptedHookEvery3(ScriptedHook):
    @hookimpl(when=every(3))
    def after_train_iter(self, run):
        super().after_train_iter(run)


@pytest.mark.parametrize(
    ("kind", "written", "left"),
    [
        # Optimizer steps at iterations 2, 4 and 6.
        (ScriptedHook, [(1, {"a": 1.0}), (2, {"a": 2.0}), (3, {"a": 3.0})], 6),
        # Due at iterations 3 and 6: 3 is no optimizer step, 4 is the second one.
        (ScriptedHookEvery3, [(2, {"a": 1.0}), (3, {"a": 2.0})], 7),
    ],
)
def test_due_record_is_deferred_to_a_step_without_a_record(kind, written, left):
    hook, writer = kind({"a": float(n)} for n in range(1, 10)), Writer()
    accumulate([hook, writer], by=2)

    assert writer.written == written
    assert len(hook.remaining) == left


def test_empty_values_are_not_logged_and_requested_again():
    requests = 2 * 3  # after each optimizer step and after its iteration
    hook, writer = ScriptedHook([*[{}] * requests, {"a": 1.0}]), Writer()
    accumulate([hook, writer], by=2)

    assert writer.written == [(3, {"a": 1.0})]
    assert hook.remaining == []


def test_hook_without_values_raises_not_implemented_error():
    class Empty(MonitorHook):
        pass

    with pytest.raises(NotImplementedError, match="Empty: `collect_values` is not implemented"):
        accumulate([Empty()], by=2)
