"""Tests of the tables of commands."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import Hook, HookBus
from hookbus._cli.tables import print_order


class Step(Hook):
    def before_train(self) -> None: ...

    def train_step(self, batch: Any) -> Any: ...


def test_order_lists_the_hooks_of_actions_after_the_points(capsys: pytest.CaptureFixture[str]) -> None:
    print_order(HookBus([Step()]).explain())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["before_train"] in lines
    action = lines.index(["action", "train_step"])
    assert lines.index(["before_train"]) < action
    assert (lines[action + 1][0], lines[action + 1][-1]) == ("step", "replaces")
