from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hookbus import HookBus
from hookbus.errors import HookError
from hookbus.testing import fake_training
from hookbus_schedule import SetEpochInfoHook


def test_the_model_is_told_each_epoch_from_0(kit: Any) -> None:
    model = kit.Net()
    kit.train(SetEpochInfoHook(), model=model, epochs=3)

    assert model.told == [0, 1, 2]


@pytest.mark.parametrize(("at", "told"), [(3, [1, 2]), (4, [1, 2])])
def test_it_is_told_after_a_resume(kit: Any, tmp_path: Path, at: int, told: list[int]) -> None:
    model, path = kit.Net(), tmp_path / "saved.pth"
    kit.train(SetEpochInfoHook(), kit.SaveAt(path, at), epochs=3)
    kit.train(SetEpochInfoHook(), model=model, epochs=3, resume=path)

    assert model.told[-2:] == told


def test_it_is_told_in_loops_that_count_iterations(kit: Any) -> None:
    model = kit.Net()
    kit.train(SetEpochInfoHook(), model=model, iterations=5)

    assert model.told == [0, 1]


def test_the_model_inside_a_wrapper_is_told(kit: Any) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model, bus = kit.Net(), HookBus([SetEpochInfoHook()])
    with bus.run(model=Wrapper(model), epochs=1):
        bus.emit("before_train_epoch")

    assert model.told == [0]


def test_a_model_that_does_not_want_to_know_is_an_error_at_the_start() -> None:
    with pytest.raises(
        HookError, match=r"Sequential has no method set_epoch\(epoch\): write one, or leave the hook out"
    ):
        fake_training([SetEpochInfoHook()])
