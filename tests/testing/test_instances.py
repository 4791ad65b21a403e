"""Two instances of a hook side by side: faulty hooks fail, and hooks may refuse a second instance."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookbus import Hook, HookConfig, Run
from hookbus.errors import ConfigError
from hookbus.testing import check_two_instances


class FactorConfig(HookConfig):
    factor: float = 1.0


class Scaling(Hook):
    """Scales the learning rate at each iteration."""

    Config = FactorConfig
    config: FactorConfig

    def before_train_iter(self, run: Run) -> None:
        assert run.optimizer is not None
        run.optimizer.param_groups[0]["lr"] *= self.config.factor


class Setting(Scaling):
    """Sets the learning rate, so that the last instance wins."""

    def before_train_iter(self, run: Run) -> None:
        assert run.optimizer is not None
        run.optimizer.param_groups[0]["lr"] = self.config.factor


class Refusing(Setting):
    """Accepts one instance only."""

    def check(self, run: Run) -> None:
        if sum(isinstance(hook, Refusing) for hook in run.bus.hooks.values()) > 1:
            raise ConfigError(["two hooks set the learning rate. Remove one of them."])


class RefusingLater(Refusing):
    """Refuses the second instance after the first iteration."""

    def check(self, run: Run) -> None:
        pass

    def after_train_iter(self, run: Run) -> None:
        super().check(run)


class RefusingTheSecond(Setting):
    """Refuses an instance with a smaller factor than that of the first."""

    def check(self, run: Run) -> None:
        first = next(hook for hook in run.bus.hooks.values() if isinstance(hook, RefusingTheSecond))
        if self.config.factor < first.config.factor:
            raise ConfigError(["the factors must increase. Swap the hooks."])


class Forgetting(Scaling):
    """Changes the learning rate in the second iteration after the start, also after a resume."""

    def before_train(self) -> None:
        self.calls = 0

    def before_train_iter(self, run: Run) -> None:
        self.calls += 1
        if self.calls == 2:
            super().before_train_iter(run)


def check(cls: type[Hook], directory: Path, *factors: float) -> None:
    check_two_instances(cls, *({"factor": factor} for factor in factors), directory=directory)


def test_independent_instances_pass(tmp_path: Path) -> None:
    check(Scaling, tmp_path, 0.5)
    check(Scaling, tmp_path / "other", 0.5, 0.25)


def test_refused_second_instance_passes(tmp_path: Path) -> None:
    check(Refusing, tmp_path, 0.5)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Setting, r"two instances of Setting have other results in the opposite order: the optimizer .*\. Store"),
        (Forgetting, r"two instances of Forgetting have other results after a resume: .*\. Return from state_dict"),
        (RefusingTheSecond, "two instances of RefusingTheSecond are refused in one order only: .*must increase"),
        (RefusingLater, "two instances of RefusingLater fail in a small training: ConfigError"),
    ],
)
def test_faulty_instances_fail_with_a_message(tmp_path: Path, cls: type[Hook], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(cls, tmp_path, 0.5, 0.25)
