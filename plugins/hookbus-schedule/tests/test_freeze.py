from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hookbus import Hook, HookBus, Run
from hookbus.errors import ConfigError, HookError
from hookbus.testing import check_hook, check_two_instances, fingerprint
from hookbus_schedule import FreezeHook


class ChangeRecorder(Hook):
    """Record after each iteration whether backbone and head have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[bool, bool]] = []

    def before_train_iter(self, model: Any) -> None:
        self.before = fingerprint(model.backbone.state_dict()), fingerprint(model.head.state_dict())

    def after_train_iter(self, model: Any) -> None:
        after = fingerprint(model.backbone.state_dict()), fingerprint(model.head.state_dict())
        self.changes.append((self.before[0] != after[0], self.before[1] != after[1]))


def get_backbone_changes(recorder: ChangeRecorder) -> list[bool]:
    assert all(head for _, head in recorder.changes)
    return [backbone for backbone, _ in recorder.changes]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"modules": ["0"]}, {"modules": ["0.*"], "until_iter": 2}])
def test_hook_passes_the_conformance_checks(settings: dict[str, Any]) -> None:
    check_hook(FreezeHook, **settings)


def test_patterns_are_names_of_the_model_without_compiled_blocks() -> None:
    block = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    model = nn.Sequential(torch.compile(block, backend="eager"), nn.Linear(1, 1))
    bus = HookBus([FreezeHook(modules=["0.*"])])
    with bus.run(model=model, iterations=1):
        bus.emit("before_train")
        assert [parameter.requires_grad for parameter in model.parameters()] == [False] * 4 + [True] * 2
        bus.emit("before_train_iter")
        assert not block[1].training


class TestFrozenModules:
    def test_frozen_modules_and_statistics_do_not_change(self, kit: Any) -> None:
        recorder = ChangeRecorder()
        kit.train(FreezeHook(modules=["backbone"]), recorder, epochs=2)

        assert get_backbone_changes(recorder) == [False] * 6

    def test_modules_are_unfrozen_after_n_epochs(self, kit: Any) -> None:
        recorder = ChangeRecorder()
        kit.train(FreezeHook(modules=["backbone"], until_epoch=1), recorder, epochs=2)

        assert get_backbone_changes(recorder) == [False] * 3 + [True] * 3

    def test_modules_are_unfrozen_after_n_iterations(self, kit: Any) -> None:
        recorder = ChangeRecorder()
        kit.train(FreezeHook(modules=["backbone.*"], until_iter=2), recorder, iterations=5)

        assert get_backbone_changes(recorder) == [False] * 2 + [True] * 3

    @pytest.mark.parametrize(("at", "expected"), [(2, [False, True, True, True]), (5, [True])])
    def test_modules_are_frozen_and_unfrozen_after_a_resume(
        self, kit: Any, tmp_path: Path, at: int, expected: list[bool]
    ) -> None:
        path, settings = tmp_path / "saved.pth", {"modules": ["backbone"], "until_epoch": 1}
        kit.train(FreezeHook(settings), kit.SaveAt(path, at), epochs=2)
        recorder = ChangeRecorder()
        kit.train(FreezeHook(settings), recorder, epochs=2, resume=path)

        assert get_backbone_changes(recorder) == expected

    def test_weight_decay_does_not_change_frozen_modules(self) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
        model.weight.grad = torch.ones(1, 1)
        before, bus = model.weight.item(), HookBus([FreezeHook(modules=["weight"])])
        with bus.run(model=model, optimizer=optimizer):
            bus.emit("before_train_iter")
            optimizer.step()

        assert model.weight.item() == before

    def test_running_statistics_can_be_updated(self, kit: Any) -> None:
        recorder = ChangeRecorder()
        kit.train(FreezeHook(modules=["backbone"], keep_statistics=False), recorder, epochs=1)

        assert get_backbone_changes(recorder) == [True] * 3

    def test_statistics_stay_frozen_if_the_loop_calls_train(self, kit: Any) -> None:
        class TrainModeHook(Hook):
            def before_train_epoch(self, model: nn.Module) -> None:
                model.train()

        recorder = ChangeRecorder()
        kit.train(FreezeHook(modules=["backbone"]), TrainModeHook(), recorder, epochs=2)

        assert get_backbone_changes(recorder) == [False] * 6


class TwoWeights(nn.ModuleList):
    """Two layers with one weight each, which is 1."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1, bias=False) for _ in range(2))
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self[0](x) + self[1](x)


def train_weights(*hooks: Hook, wrap: Callable[[nn.Module], nn.Module] | None = None) -> list[list[float]]:
    """Train two weights for 4 iterations, in each of which a trained weight decreases by 0.25; return all values."""
    model, values = TwoWeights(), []
    forward = model if wrap is None else wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    with (bus := HookBus(hooks)).run(model=model, optimizer=optimizer, iterations=4):
        for _ in range(4):
            bus.emit("before_train_iter")
            optimizer.zero_grad()
            forward(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            values.append([parameter.item() for parameter in model.parameters()])
            bus.emit("after_train_iter")
    assert all(parameter.requires_grad for parameter in model.parameters())
    return values


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class TestNoTrainableParameter:
    def test_loop_continues_without_changes_and_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        assert train_weights(FreezeHook(modules=["*"])) == [[1, 1]] * 4
        assert (
            "freeze: no trainable parameter remains. The gradients of the 2 frozen ones are computed, and dropped "
            "before each optimizer step."
        ) in caplog.messages

    def test_hook_registered_during_the_run_freezes_all(self) -> None:
        class Register(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 2:
                    run.bus.register(FreezeHook(modules=["*"]))

        assert train_weights(Register()) == [[0.75, 0.75], *3 * [[0.5, 0.5]]]

    def test_modules_are_unfrozen_in_time(self) -> None:
        assert train_weights(FreezeHook(modules=["*"], until_iter=2)) == [[1, 1], [1, 1], [0.75, 0.75], [0.5, 0.5]]

    @pytest.mark.parametrize("is_reversed", [False, True])
    def test_multiple_hooks_freeze_all_modules(self, is_reversed: bool) -> None:
        hooks = [FreezeHook(name="a", modules=["0"], until_iter=2), FreezeHook(name="b", modules=["1"])]
        expected = [[1, 1], [1, 1], [0.75, 1], [0.5, 1]]
        assert train_weights(*(reversed(hooks) if is_reversed else hooks)) == expected

    @pytest.mark.usefixtures("process_group")
    def test_weights_do_not_change_although_ddp_restores_gradients(self) -> None:
        assert train_weights(FreezeHook(modules=["*"]), wrap=DistributedDataParallel) == [[1, 1]] * 4


class TestAfterwards:
    def test_model_is_restored_after_the_run(self, kit: Any) -> None:
        model = kit.Net()
        model.backbone[0].bias.requires_grad_(False)
        kit.train(FreezeHook(modules=["backbone"]), model=model, epochs=1)

        assert [name for name, value in model.named_parameters() if not value.requires_grad] == ["backbone.0.bias"]
        assert all(module.training for module in model.modules())

    def test_model_is_restored_after_a_failed_run(self, kit: Any) -> None:
        class FailingHook(Hook):
            def after_train_iter(self, run: Run) -> None:
                raise ZeroDivisionError

        model = kit.Net()
        with pytest.raises(ZeroDivisionError):
            kit.train(FreezeHook(modules=["backbone"]), FailingHook(), model=model, epochs=1)
        assert all(parameter.requires_grad for parameter in model.parameters())


class TestNames:
    def test_unknown_names_are_an_error_with_similar_names(self, kit: Any) -> None:
        with pytest.raises(ConfigError, match=r"'backbon' matches no module .* Did you mean 'backbone'") as caught:
            kit.train(FreezeHook(modules=["backbon", "x.*"]), epochs=1)
        assert len(caught.value.problems) == 2

    def test_missing_model_is_an_error(self) -> None:
        bus = HookBus([FreezeHook(modules=["a"])])
        with pytest.raises(HookError, match="Pass `model` to the run"), bus.run():
            bus.emit("before_train_iter")


class TestTwoHooks:
    @pytest.mark.parametrize("is_reversed", [False, True])
    def test_module_stays_frozen_until_the_last_hook_unfreezes_it(self, kit: Any, is_reversed: bool) -> None:
        hooks = [
            FreezeHook(name="short", modules=["backbone"], until_iter=1),
            FreezeHook(name="long", modules=["backbone.*"], until_epoch=1),
        ]
        recorder = ChangeRecorder()
        kit.train(*(reversed(hooks) if is_reversed else hooks), recorder, epochs=2)

        assert get_backbone_changes(recorder) == [False] * 3 + [True] * 3

    @pytest.mark.parametrize("is_reversed", [False, True])
    def test_modes_are_restored_after_the_last_hook(self, is_reversed: bool) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        hooks = [FreezeHook(name="a", modules=["1"], until_iter=1), FreezeHook(name="b", modules=["*"])]
        bus = HookBus(hooks[::-1] if is_reversed else hooks)
        with bus.run(model=model, iterations=3):
            for _ in range(3):
                bus.emit("before_train_iter")
                assert not any(parameter.requires_grad for parameter in model.parameters())
                assert not model[1].training
                bus.emit("after_train_iter")

        assert all(parameter.requires_grad for parameter in model.parameters())
        assert model[1].training

    def test_hooks_pass_the_check_of_two_instances(self, tmp_path: Path) -> None:
        settings = {"modules": ["0"], "until_iter": 2}, {"modules": ["0.weight"], "until_epoch": 1}
        check_two_instances(FreezeHook, *settings, directory=tmp_path)
