"""Hooks are pickled and copied without the run and the bus that they are registered with."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from torch import Tensor, ones

from hookbus import Hook, HookBus, HookConfig, every
from hookbus.errors import HookError
from hookbus.testing import fake_training


class CountConfig(HookConfig):
    """Settings of the hook of these tests."""

    size: int = 1


class Count(Hook):
    """Hook with a state, and with references to itself, its run and its bus."""

    Config = CountConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.own, self.values = [self.before_run], ones(self.config.size)

    def before_run(self, run: Any) -> None:
        self.objects = {"run": run, "bus": run.bus}

    def after_train_iter(self, run: Any) -> None:
        self.values += 1


COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, lambda hook: pickle.loads(pickle.dumps(hook))]


@pytest.mark.parametrize("make_copy", COPIES, ids=["deepcopy", "pickle"])
class TestCopy:
    def test_copy_has_the_settings_and_attributes_of_the_hook(self, make_copy: Callable[[Count], Count]) -> None:
        hook = Count(size=2, when=every(3), priority=7)
        copied = make_copy(hook)
        assert (type(copied), copied.config) == (Count, hook.config)
        assert copied.values.tolist() == [1.0, 1.0]
        assert copied.own == [copied.before_run]

    def test_copy_of_a_registered_hook_belongs_to_no_bus(self, make_copy: Callable[[Count], Count]) -> None:
        bus, hook = HookBus(), Count()
        bus.register(hook, "first")
        copied = make_copy(hook)
        assert copied.name == "count"
        with pytest.raises(RuntimeError, match="no run is available"):
            _ = copied.run
        bus.register(copied, "second")

    def test_copy_during_and_after_a_run_is_independent_of_it(self, make_copy: Callable[[Count], Count]) -> None:
        copies: list[Count] = []
        bus, hook = HookBus(), Count()
        bus.register(hook)
        bus.on("after_train_iter", when=every(2), priority=0)(lambda: copies.append(make_copy(hook)))
        fake_training(bus=bus, epochs=1, batches=3)
        copies.append(make_copy(hook))
        assert [copied.values.tolist() for copied in copies] == [[3.0], [4.0]]
        assert copies[1].objects == {"run": None, "bus": None}
        fake_training([copies[1]], epochs=1, batches=3)
        assert (copies[1].values.tolist(), hook.values.tolist()) == ([7.0], [4.0])

    def test_hook_that_holds_a_lock_is_refused_with_the_reason(self, make_copy: Callable[[Count], Count]) -> None:
        hook = Count()
        hook.lock = threading.Lock()  # type: ignore[attr-defined]
        with pytest.raises(HookError, match=r"hook 'count': cannot be .* '_thread.lock' object. Define __getstate__"):
            make_copy(hook)
        with (bus := HookBus([hook])).run(), pytest.raises(HookError, match="Copy it before or after the run"):
            make_copy(hook)
        assert list(bus.hooks) == ["count"]


def test_own_pickling_of_a_class_is_respected() -> None:
    class Short(Hook):
        values: Tensor

        def __getstate__(self) -> dict[str, Any]:
            return {"length": 3}

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.values = ones(state["length"])

    assert copy.deepcopy(Short()).values.tolist() == [1.0, 1.0, 1.0]


def test_hook_of_a_local_class_can_be_copied() -> None:
    class Local(Hook):
        values: Any = None

    hook = Local()
    hook.values = [3]

    assert copy.copy(hook).values == [3]


def test_class_of_a_hook_is_left_to_the_pickler() -> None:
    # cloudpickle copies the classes of scripts and of functions, which the standard pickler cannot import.
    hook = cloudpickle.loads(cloudpickle.dumps(type("Scripted", (Hook,), {"__module__": "__main__"})(enabled=False)))

    assert (type(hook).__name__, hook.config.enabled) == ("Scripted", False)


def test_deep_copy_of_two_hooks_keeps_their_relation() -> None:
    first, second = Count(), Count()
    first.partner = second  # type: ignore[attr-defined]
    copies = copy.deepcopy([first, second])
    assert copies[0].partner is copies[1]  # type: ignore[attr-defined]
