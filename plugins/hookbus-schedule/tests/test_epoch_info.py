from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hookbus import HookBus
from hookbus.errors import HookError
from hookbus.testing import fake_training
from hookbus_schedule import SetEpochInfoHook


def test_model_receives_each_epoch_index_from_0(kit: Any) -> None:
    model = kit.Net()
    kit.train(SetEpochInfoHook(), model=model, epochs=3)

    assert model.epochs == [0, 1, 2]


@pytest.mark.parametrize(("at", "epochs"), [(3, [1, 2]), (4, [1, 2])])
def test_model_receives_the_epoch_after_a_resume(kit: Any, tmp_path: Path, at: int, epochs: list[int]) -> None:
    model, path = kit.Net(), tmp_path / "saved.pth"
    kit.train(SetEpochInfoHook(), kit.SaveAt(path, at), epochs=3)
    kit.train(SetEpochInfoHook(), model=model, epochs=3, resume=path)

    assert model.epochs[-2:] == epochs


def test_model_receives_the_epoch_in_runs_limited_by_iterations(kit: Any) -> None:
    model = kit.Net()
    kit.train(SetEpochInfoHook(), model=model, iterations=5)

    assert model.epochs == [0, 1]


def test_wrapped_model_receives_the_epoch(kit: Any) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model, bus = kit.Net(), HookBus([SetEpochInfoHook()])
    with bus.run(model=Wrapper(model), epochs=1):
        bus.emit("before_train_epoch")

    assert model.epochs == [0]


def test_model_without_set_epoch_is_an_error() -> None:
    with pytest.raises(HookError, match=r"got Sequential\. Add the method, or remove the hook"):
        fake_training([SetEpochInfoHook()])
