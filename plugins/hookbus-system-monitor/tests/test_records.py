"""Records stand on optimizer updates."""

import pytest

from hookbus import every, hookimpl
from hookbus_system_monitor.records import RecordingHook

from .toys import Writer, accumulate


class Answers(RecordingHook):
    """Records the next of these answers, and after training what is left."""

    priority = 0

    def __init__(self, answers):
        super().__init__()
        self.answers = list(answers)

    def values(self, run):
        return self.answers.pop(0)

    def after_train(self, run):
        self._record(run)


class Every3(Answers):
    @hookimpl(when=every(3))
    def after_train_iter(self, run):
        super().after_train_iter(run)


@pytest.mark.parametrize(
    ("kind", "written", "left"),
    [
        # Updates are made at iterations 2, 4 and 6.
        (Answers, [(1, {"a": 1.0}), (2, {"a": 2.0}), (3, {"a": 3.0})], 6),
        # Due at iterations 3 and 6: 3 makes no update, 4 makes the second one.
        (Every3, [(2, {"a": 1.0}), (3, {"a": 2.0})], 7),
    ],
)
def test_a_record_that_is_due_waits_for_an_update_that_has_none_yet(kind, written, left):
    hook, writer = kind({"a": float(n)} for n in range(1, 10)), Writer()
    accumulate([hook, writer], by=2)

    assert writer.written == written
    assert len(hook.answers) == left


def test_where_there_is_nothing_new_there_is_no_record_and_the_end_looks_again():
    looked = 2 * 3  # after each update, and after the iteration that makes it
    hook, writer = Answers([*[{}] * looked, {"a": 1.0}]), Writer()
    accumulate([hook, writer], by=2)

    assert writer.written == [(3, {"a": 1.0})]
    assert hook.answers == []


def test_a_hook_that_does_not_say_what_it_records_is_told():
    class Mute(RecordingHook):
        pass

    with pytest.raises(NotImplementedError, match="Mute must say what it records"):
        accumulate([Mute()], by=2)
