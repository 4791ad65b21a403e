"""What hooks need is looked for before anything is done."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError, HookbusError, HookError
from hookbus.run import Run
from hookbus.testing import RecordingBus
from tests.toys import trainer


class Wants(Hook):
    """Cannot work, for the given reason."""

    def __init__(self, error: Exception, **settings: Any) -> None:
        super().__init__(None, **settings)
        self.error = error

    def check(self, run: Run) -> None:
        raise self.error


HEAD = ConfigError(["layer: 'haed' is no module. Did you mean 'head'?"])
ME = "module tests.runs.test_preconditions"


def test_a_hook_that_lacks_something_keeps_the_run_from_beginning() -> None:
    bus = RecordingBus([Wants(HEAD, name="maps")])
    with pytest.raises(ConfigError) as caught, bus.run():
        pytest.fail("the loop has begun")
    assert caught.value.problems == [f"hook 'maps' ({ME}): layer: 'haed' is no module. Did you mean 'head'?"]
    assert "before_run" not in bus.fired


def test_all_that_is_wrong_is_told_at_once() -> None:
    two = ConfigError(["layer: no", "size: no"])
    with pytest.raises(ConfigError) as caught, HookBus([Wants(HEAD, name="a"), Wants(two, name="b")]).run():
        pytest.fail("the loop has begun")
    assert [problem.partition(f" ({ME}): ")[0] for problem in caught.value.problems] == [
        "hook 'a'",
        "hook 'b'",
        "hook 'b'",
    ]

    with (
        pytest.raises(HookbusError) as mixed,
        HookBus([Wants(HEAD, name="a"), Wants(HookError("no."), name="b")]).run(),
    ):
        pytest.fail("the loop has begun")
    first, second = str(mixed.value).splitlines()
    assert (first[:8], second) == ("hook 'a'", f"hook 'b' ({ME}): no.")


def test_the_check_of_a_trainer_asks_each_hook_with_all_that_the_run_will_have() -> None:
    class Looks(Hook):
        def check(self, run: Run) -> None:
            seen.append((run.mode, type(run.model), run.max_epochs, run.train_loader is not None, run.work_dir))

    seen: list[Any] = []
    made = trainer(Looks(), epochs=3)
    made.check()
    assert seen == [("train", nn.Sequential, 3, True, None)]

    with pytest.raises(ConfigError, match=r"hook 'maps' .*: layer: 'haed' is no module"):
        trainer(Wants(HEAD, name="maps"), epochs=3).check()


def test_one_that_is_not_enabled_is_not_asked() -> None:
    with HookBus([Wants(HEAD, enabled=False)]).run():
        pass
