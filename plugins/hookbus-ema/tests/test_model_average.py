"""Averages of a model whose tensors change during training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Hook
from hookbus._run.run import Run
from hookbus.checkpoint.state import read_checkpoint, write_checkpoint
from hookbus.errors import CheckpointError
from hookbus.trainer.trainer import Trainer
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import AsyncMovingAverage, EMAConfig, EMAHook, ExponentialMovingAverage
from hookbus_ema.model_average import is_initialized, load_average, sync_with_model

LOGGER = logging.getLogger("test")


def two_layers() -> nn.Sequential:
    return fill(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), 0)


def fill(model: Any, value: float) -> Any:
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def get_values(average: ExponentialMovingAverage) -> dict[str, float]:
    return {name: float(value) for name, value in average.averaged().items()}


def update_once(model: nn.Module, config: EMAConfig) -> ExponentialMovingAverage:
    """Return an average halfway between the initial weights and 1."""
    kind = AsyncMovingAverage if config.overlap else ExponentialMovingAverage
    average = kind(model, config.momentum, warm_up=config.warm_up)
    fill(model, 1)
    average.update()
    return average


def append_layer(model: nn.Sequential) -> None:
    model.append(fill(nn.Linear(1, 1, bias=False), 4))


def replace_head(model: nn.Sequential) -> None:
    model[1] = fill(nn.Linear(1, 1, bias=False), 4)


def remove_layer(model: nn.Sequential) -> None:
    del model[0]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("change", "averages", "message"),
    [
        (
            append_layer,
            {"0.weight": 0.5, "1.weight": 0.5, "2.weight": 4.0},
            "Now averaged: ['2.weight']; no longer averaged: [].",
        ),
        (replace_head, {"0.weight": 0.5, "1.weight": 4.0}, "Now averaged: ['1.weight']; no longer averaged: []."),
        (remove_layer, {"0.weight": 0.5}, "Now averaged: []; no longer averaged: ['1.weight']."),
    ],
)
def test_old_tensors_keep_their_averages_and_new_ones_start_at_their_values(
    change: Callable[[nn.Sequential], None],
    averages: dict[str, float],
    message: str,
    overlap: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, config = two_layers(), EMAConfig(momentum=0.5, warm_up=0, overlap=overlap)
    average = update_once(model, config)
    change(model)
    current = sync_with_model(average, model, EMAHook(config).build_average, LOGGER)

    assert get_values(current) == averages
    assert current.steps == 1
    assert isinstance(current, AsyncMovingAverage) == overlap
    assert [text.partition("changed. ")[2] for text in caplog.messages] == [message]
    current.close()


def test_unchanged_model_keeps_its_average_object(caplog: pytest.LogCaptureFixture) -> None:
    model, config = two_layers(), EMAConfig(momentum=0.5, warm_up=0)
    average = update_once(model, config)

    assert sync_with_model(average, model, EMAHook(config).build_average, LOGGER) is average
    assert not caplog.messages


@pytest.mark.parametrize(("update_buffers", "warnings"), [(False, 0), (True, 1)])
def test_replaced_buffer_is_logged_only_if_it_is_averaged(
    update_buffers: bool, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    model, config = nn.BatchNorm1d(1), EMAConfig(momentum=0.5, warm_up=0, update_buffers=update_buffers)
    average = ExponentialMovingAverage(model, 0.5, warm_up=0, update_buffers=update_buffers)
    model.running_mean = torch.full((1,), 3.0)
    current = sync_with_model(average, model, EMAHook(config).build_average, LOGGER)

    assert current.averaged()["running_mean"].item() == 3
    assert len(caplog.messages) == warnings


def test_average_is_unchanged_while_it_is_in_the_model() -> None:
    model, config = two_layers(), EMAConfig(momentum=0.5, warm_up=0)
    average = update_once(model, config)
    with average.applied():
        append_layer(model)
        assert sync_with_model(average, model, EMAHook(config).build_average, LOGGER) is average


class GrowingModel(nn.Module):
    """Model whose loss has the gradient -1 for each weight. A hook appends a second weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(1))])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return -sum((weight * batch.mean() for weight in self.weights), torch.zeros(1)).sum()


def test_growing_model_is_averaged_validated_and_saved_completely(tmp_path: Any) -> None:
    """Each step adds 1 to each weight. The second weight is added in epoch 2 and starts at 0."""

    class Grower(Hook):
        def before_epoch(self, run: Run, epoch: int) -> None:
            if epoch == 1:
                assert isinstance(run.model, GrowingModel)
                run.model.weights.append(nn.Parameter(torch.zeros(1)))
                assert run.optimizer is not None
                run.optimizer.add_param_group({"params": [run.model.weights[1]]})

    validated: list[list[float]] = []

    class WeightRecorder(Hook):
        def after_val(self, run: Run) -> None:
            assert isinstance(run.model, GrowingModel)
            validated.append([weight.item() for weight in run.model.weights])

    model = GrowingModel()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        train_loader=[torch.ones(1)] * 2,
        val_loader=[torch.ones(1)],
        epochs=2,
        hooks=[EMAHook(momentum=0.5, warm_up=0), Grower(), WeightRecorder(), CheckpointHook(save_best=False)],
        default_hooks=False,
        work_dir=tmp_path,
        device="cpu",
    )
    trainer.fit()

    # epoch 1: 0.5 * 0 + 0.5 * 1 = 0.5, 0.5 * 0.5 + 0.5 * 2 = 1.25; in epoch 2 the weights are 3 and 4, and 1 and 2
    assert validated == [[1.25], [3.0625, 1.25]]
    saved = read_checkpoint(tmp_path / "checkpoints/last.pth")
    assert {name: float(value) for name, value in saved["ema_state_dict"].items()} == {
        "weights.0": 3.0625,
        "weights.1": 1.25,
    }


class AddAdapter(Hook):
    """Add a trained layer at the start of the second epoch."""

    is_added = False

    def before_train_epoch(self, run: Run) -> None:
        if run.epoch == 1 and not self.is_added:
            self._add(run)

    def restore_structure(self, run: Run, state: dict[str, Any]) -> None:
        if state["is_added"]:
            self._add(run)

    def _add(self, run: Run) -> None:
        assert isinstance(run.model, nn.Sequential)
        assert run.optimizer is not None
        adapter = fill(nn.Linear(2, 2), 0.5)
        run.model.append(adapter)
        run.optimizer.add_param_group({"params": list(adapter.parameters())})
        self.is_added = True

    def state_dict(self) -> dict[str, Any]:
        return {"is_added": self.is_added}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.is_added = state["is_added"]


@pytest.mark.parametrize("order", [1, -1])
def test_average_of_a_layer_that_a_hook_added_resumes_exactly(order: int, tmp_path: Any) -> None:
    def train(epochs: int, directory: str, **options: Any) -> tuple[nn.Module, EMAHook]:
        model, average = nn.Sequential(fill(nn.Linear(4, 2), 0.1)), EMAHook(momentum=0.5, warm_up=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hooks = [*[AddAdapter(), average][::order], CheckpointHook(interval=1, save_best=False)]
        data = [(torch.ones(2, 4) * i, torch.tensor([0, 1])) for i in range(3)]
        settings = {"epochs": epochs, "work_dir": tmp_path / directory, "default_hooks": False, "seed": 0, **options}
        Trainer(model, optimizer, functional.cross_entropy, data, data, hooks=hooks, **settings).fit()
        return model, average

    model, average = train(4, "uninterrupted")
    train(2, "resumed")
    resumed_model, resumed_average = train(4, "resumed", resume="auto")
    assert all(map(torch.equal, resumed_model.parameters(), model.parameters()))
    expected, actual = average.averaged() or {}, resumed_average.averaged() or {}
    assert len(expected) == 4
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


class TestLazyModules:
    def build_model(self) -> nn.Sequential:
        return nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())

    def test_lazy_modules_have_shapes_after_the_first_forward(self) -> None:
        model = self.build_model()
        assert not is_initialized(model)
        model(torch.ones(4, 3))
        assert is_initialized(model)

    def test_average_of_lazy_modules_starts_at_their_first_weights(self) -> None:
        model, hook = self.build_model(), EMAHook(momentum=0.5, warm_up=0)
        first: list[torch.Tensor] = []

        class FirstWeightRecorder(Hook):
            def before_optimizer_step(self) -> None:
                first.append(model[0].weight.detach().clone())

        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            functional.cross_entropy,
            train_loader=[(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0]))],
            epochs=1,
            hooks=[hook, FirstWeightRecorder()],
            default_hooks=False,
            work_dir=None,
            device="cpu",
        )
        trainer.fit()

        averages = hook.averaged()
        assert averages is not None
        assert torch.equal(averages["0.weight"], torch.lerp(first[0], model[0].weight.detach(), 0.5))
        assert not torch.equal(first[0], model[0].weight)


LOGGER = logging.getLogger("test")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(**content: Any) -> Path:
        path = tmp_path / "epoch_1.pth"
        write_checkpoint(path, content, generation=1)
        return path

    return write


def averages(count: int = 5) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((count, 2), 7.0), "bias": torch.full((count,), 8.0)}


def record(steps: int) -> dict[str, Any]:
    common = {"version": 1, "package": "hookbus-ema 0.1.0"}
    return {
        "ema": {**common, "type": "EMAHook", "state": {"steps": steps}},
        "timer": {**common, "type": "IterTimerHook", "state": {}},
    }


def test_averages_and_warm_up_continue(write: Callable[..., Path]) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    load_average(
        average, nn.Linear(2, 5), write(ema_state_dict=averages(), hooks=record(123), meta={"step": 200}), LOGGER
    )

    assert average.averaged()["weight"].unique().tolist() == [7.0]
    assert average.averaged()["bias"].unique().tolist() == [8.0]
    assert average.steps == 123


@pytest.mark.parametrize(("content", "steps"), [({"meta": {"step": 200}}, 200), ({}, 0)])
def test_steps_are_those_of_the_run_without_a_state_of_the_hook(
    write: Callable[..., Path], content: dict[str, Any], steps: int
) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    load_average(average, nn.Linear(2, 5), write(ema_state_dict=averages(), **content), LOGGER)

    assert average.steps == steps


def test_matching_averages_are_loaded_and_the_rest_is_logged(
    write: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 5)
    saved = {"weight": torch.full((5, 2), 7.0), "bias": torch.zeros(3), "scale": torch.zeros(1)}
    average = ExponentialMovingAverage(model)
    load_average(average, nn.Linear(2, 5), write(ema_state_dict=saved), LOGGER)

    assert average.averaged()["weight"].unique().tolist() == [7.0]
    assert torch.equal(average.averaged()["bias"], model.bias)
    assert caplog.messages == [
        "resume_from: skipped: ['bias', 'scale']; initialized from the weights of the model: ['bias'].",
    ]


def test_complete_match_logs_nothing(write: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    load_average(ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), write(ema_state_dict=averages()), LOGGER)

    assert caplog.messages == []


def test_checkpoint_without_averages_is_rejected(write: Callable[..., Path]) -> None:
    path = write(meta={}, state_dict={})
    with pytest.raises(
        CheckpointError, match=r"contains no averaged weights \(ema_state_dict\), only meta, state_dict\."
    ):
        load_average(ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), path, LOGGER)


def test_checkpoint_of_another_model_is_rejected(write: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=r"no average in .* matches the model\."):
        load_average(
            ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), write(ema_state_dict=averages(3)), LOGGER
        )


def test_missing_checkpoint_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="file does not exist"):
        load_average(ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), tmp_path / "none.pth", LOGGER)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ema_state_dict": None}, "ema_state_dict: expected a mapping, got None"),
        ({"hooks": {"ema": None}}, "hooks.ema: expected a mapping, got None"),
        ({"hooks": record(-1)}, "hooks.ema.state.steps: expected an integer from 0"),
        ({"meta": None}, "meta: expected a mapping, got None"),
        ({"meta": {"step": 10**30}}, "meta.step: expected an integer from 0"),
    ],
)
def test_invalid_value_is_reported_with_its_key(
    write: Callable[..., Path], content: dict[str, Any], message: str
) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    with pytest.raises(CheckpointError, match=rf"epoch_1\.pth: The checkpoint is invalid: {message}"):
        load_average(average, nn.Linear(2, 5), write(**{"ema_state_dict": averages(), **content}), LOGGER)
