"""How given hooks and default hooks go together."""

from __future__ import annotations

from hookbus import Hook
from hookbus.runfile.defaults import with_defaults


class LogHook(Hook):
    pass


class OwnLogHook(LogHook):
    pass


class SaveHook(Hook):
    pass


def test_defaults_come_first_and_given_hooks_keep_their_order() -> None:
    log, save, first, second = LogHook(), SaveHook(), Hook(name="a"), Hook(name="b")
    assert with_defaults([first, second], [log, save]) == [log, save, first, second]


def test_a_given_hook_replaces_the_default_of_its_type() -> None:
    log, save, own = LogHook(), SaveHook(), LogHook(name="mine")
    assert with_defaults([own], [log, save]) == [save, own]


def test_a_subclass_replaces_the_default_that_it_refines() -> None:
    log, own = LogHook(), OwnLogHook()
    assert with_defaults([own], [log]) == [own]


def test_a_hook_that_is_switched_off_replaces_its_default() -> None:
    off = LogHook(enabled=False)
    assert with_defaults([off], [LogHook()]) == [off]


def test_a_default_does_not_give_way_to_its_base_class() -> None:
    log = LogHook()
    assert with_defaults([Hook()], [log])[0] is log
