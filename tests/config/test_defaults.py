"""Tests of the merging of user hooks with default hooks."""

from __future__ import annotations

import importlib.metadata

import pytest

from hookbus import Hook
from hookbus._config.hooks import get_default_hooks, merge_defaults


class LogHook(Hook):
    pass


class OwnLogHook(LogHook):
    pass


class SaveHook(Hook):
    pass


def test_default_hooks_precede_user_hooks() -> None:
    log, save, first, second = LogHook(), SaveHook(), Hook(name="a"), Hook(name="b")
    assert merge_defaults([first, second], [log, save]) == [log, save, first, second]


def test_hook_replaces_the_default_of_its_type() -> None:
    log, save, own = LogHook(), SaveHook(), LogHook(name="mine")
    assert merge_defaults([own], [log, save]) == [save, own]


def test_subclass_replaces_the_default_of_its_base_class() -> None:
    log, own = LogHook(), OwnLogHook()
    assert merge_defaults([own], [log]) == [own]


def test_disabled_hook_replaces_its_default() -> None:
    off = LogHook(enabled=False)
    assert merge_defaults([off], [LogHook()]) == [off]


def test_base_class_does_not_replace_a_default() -> None:
    log = LogHook()
    assert merge_defaults([Hook()], [log])[0] is log


def test_default_hooks_are_built_with_one_search_of_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    get_default_hooks()  # imports the hooks and fills the caches of the process
    searches = []
    search = importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **group: searches.append(group) or search(**group))

    get_default_hooks()

    assert searches == [{"group": "hookbus.hooks"}]
