from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run
from hookbus.errors import ConfigError, HookError
from hookbus.testing import check_hook, fingerprint
from hookbus_schedule import FreezeHook


class Moves(Hook):
    """Notes after each iteration whether backbone and head have moved."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[bool, bool]] = []

    def before_train_iter(self, model: Any) -> None:
        self.before = fingerprint(model.backbone.state_dict()), fingerprint(model.head.state_dict())

    def after_train_iter(self, model: Any) -> None:
        after = fingerprint(model.backbone.state_dict()), fingerprint(model.head.state_dict())
        self.moved.append((self.before[0] != after[0], self.before[1] != after[1]))


def backbone(moves: Moves) -> list[bool]:
    assert all(head for _, head in moves.moved)
    return [moved for moved, _ in moves.moved]


@pytest.mark.parametrize("settings", [{"modules": ["0"]}, {"modules": ["0.*"], "until_iter": 2}])
def test_it_keeps_what_every_hook_promises(settings: dict[str, Any]) -> None:
    check_hook(FreezeHook, **settings)


class TestFrozenModules:
    def test_stand_still_statistics_included(self, kit: Any) -> None:
        moves = Moves()
        kit.train(FreezeHook(modules=["backbone"]), moves, epochs=2)

        assert backbone(moves) == [False] * 6

    def test_thaw_after_so_many_epochs(self, kit: Any) -> None:
        moves = Moves()
        kit.train(FreezeHook(modules=["backbone"], until_epoch=1), moves, epochs=2)

        assert backbone(moves) == [False] * 3 + [True] * 3

    def test_thaw_after_so_many_iterations(self, kit: Any) -> None:
        moves = Moves()
        kit.train(FreezeHook(modules=["backbone.*"], until_iter=2), moves, iterations=5)

        assert backbone(moves) == [False] * 2 + [True] * 3

    @pytest.mark.parametrize(("at", "rest"), [(2, [False, True, True, True]), (5, [True])])
    def test_are_right_after_a_resume(self, kit: Any, tmp_path: Path, at: int, rest: list[bool]) -> None:
        path, settings = tmp_path / "saved.pth", {"modules": ["backbone"], "until_epoch": 1}
        kit.train(FreezeHook(settings), kit.SaveAt(path, at), epochs=2)
        moves = Moves()
        kit.train(FreezeHook(settings), moves, epochs=2, resume=path)

        assert backbone(moves) == rest

    def test_are_not_decayed(self) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
        model.weight.grad = torch.ones(1, 1)
        before, bus = model.weight.item(), HookBus([FreezeHook(modules=["weight"])])
        with bus.run(model=model, optimizer=optimizer):
            bus.emit("before_train_iter")
            optimizer.step()

        assert model.weight.item() == before

    def test_may_gather_statistics(self, kit: Any) -> None:
        moves = Moves()
        kit.train(FreezeHook(modules=["backbone"], keep_statistics=False), moves, epochs=1)

        assert backbone(moves) == [True] * 3

    def test_stand_still_in_a_loop_that_says_train_again(self, kit: Any) -> None:
        class SaysTrain(Hook):
            def before_train_epoch(self, model: nn.Module) -> None:
                model.train()

        moves = Moves()
        kit.train(FreezeHook(modules=["backbone"]), SaysTrain(), moves, epochs=2)

        assert backbone(moves) == [False] * 6


class TestAfterwards:
    def test_the_model_is_as_it_was(self, kit: Any) -> None:
        model = kit.Net()
        model.backbone[0].bias.requires_grad_(False)
        kit.train(FreezeHook(modules=["backbone"]), model=model, epochs=1)

        assert [name for name, each in model.named_parameters() if not each.requires_grad] == ["backbone.0.bias"]
        assert all(module.training for module in model.modules())

    def test_a_run_that_failed_leaves_it_so_as_well(self, kit: Any) -> None:
        class Fails(Hook):
            def after_train_iter(self, run: Run) -> None:
                raise ZeroDivisionError

        model = kit.Net()
        with pytest.raises(ZeroDivisionError):
            kit.train(FreezeHook(modules=["backbone"]), Fails(), model=model, epochs=1)
        assert all(each.requires_grad for each in model.parameters())


class TestNames:
    def test_that_mean_nothing_are_an_error_with_near_ones(self, kit: Any) -> None:
        with pytest.raises(ConfigError, match=r"'backbon' is no module .* Did you mean 'backbone'") as caught:
            kit.train(FreezeHook(modules=["backbon", "x.*"]), epochs=1)
        assert len(caught.value.problems) == 2

    def test_need_a_model(self) -> None:
        bus = HookBus([FreezeHook(modules=["a"])])
        with pytest.raises(HookError, match="give model= to the run"), bus.run():
            bus.emit("before_train_iter")
