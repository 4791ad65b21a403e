"""Preconditions of hooks are checked before the run starts."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hookbus import Hook, HookBus
from hookbus._run.run import Run
from hookbus.errors import ConfigError, HookbusError, HookError
from hookbus.testing import RecordingBus
from tests.toys import trainer


class FailingCheck(Hook):
    """Hook whose precondition raises the given error."""

    def __init__(self, error: Exception, **settings: Any) -> None:
        super().__init__(None, **settings)
        self.error = error

    def check(self, run: Run) -> None:
        raise self.error


HEAD = ConfigError(["layer: 'haed' is no module. Did you mean 'head'?"])
PACKAGE = "module tests.run.test_preconditions"


def test_failed_check_of_a_hook_prevents_the_run() -> None:
    bus = RecordingBus([FailingCheck(HEAD, name="maps")])
    with pytest.raises(ConfigError) as caught, bus.run():
        pytest.fail("the loop has started")
    assert caught.value.problems == [f"hook 'maps' ({PACKAGE}): layer: 'haed' is no module. Did you mean 'head'?"]
    assert "before_run" not in bus.emitted_points


def test_bug_in_the_check_of_a_hook_names_the_hook() -> None:
    with pytest.raises(AttributeError) as caught, HookBus([FailingCheck(AttributeError("x"), name="maps")]).run():
        pytest.fail("the loop has started")
    assert caught.value.__notes__ == [f"raised by hook 'maps' ({PACKAGE}) in check"]


def test_errors_of_all_hooks_are_raised_at_once() -> None:
    two = ConfigError(["layer: no", "size: no"])
    with (
        pytest.raises(ConfigError) as caught,
        HookBus([FailingCheck(HEAD, name="a"), FailingCheck(two, name="b")]).run(),
    ):
        pytest.fail("the loop has started")
    assert [problem.partition(f" ({PACKAGE}): ")[0] for problem in caught.value.problems] == [
        "hook 'a'",
        "hook 'b'",
        "hook 'b'",
    ]

    with (
        pytest.raises(HookbusError) as mixed,
        HookBus([FailingCheck(HEAD, name="a"), FailingCheck(HookError("no."), name="b")]).run(),
    ):
        pytest.fail("the loop has started")
    first, second = str(mixed.value).splitlines()
    assert (first[:8], second) == ("hook 'a'", f"hook 'b' ({PACKAGE}): no.")


def test_trainer_check_passes_the_complete_run_to_each_hook() -> None:
    class RecordRun(Hook):
        def check(self, run: Run) -> None:
            seen.append((run.mode, type(run.model), run.max_epochs, run.train_loader is not None, run.work_dir))

    seen: list[Any] = []
    training = trainer(RecordRun(), epochs=3)
    training.check()
    assert seen == [("train", nn.Sequential, 3, True, None)]

    with pytest.raises(ConfigError, match=r"hook 'maps' .*: layer: 'haed' is no module"):
        trainer(FailingCheck(HEAD, name="maps"), epochs=3).check()


def test_disabled_hook_is_not_checked() -> None:
    with HookBus([FailingCheck(HEAD, enabled=False)]).run():
        pass
