"""A model that gets other tensors while it is averaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Hook
from hookbus.loop import Trainer
from hookbus.run import Run
from hookbus.state import read_checkpoint
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAConfig, EMAHook, ExponentialMovingAverage, OverlappedAverage
from hookbus_ema.following import followed, has_shape

LOGGER = logging.getLogger("test")


def two() -> nn.Sequential:
    return filled(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), 0)


def filled(model: Any, value: float) -> Any:
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def values(average: ExponentialMovingAverage) -> dict[str, float]:
    return {name: float(value) for name, value in average.averaged().items()}


def averaged_once(model: nn.Module, config: EMAConfig) -> ExponentialMovingAverage:
    """An average in the middle between the weights at the beginning and 1."""
    kind = OverlappedAverage if config.overlap else ExponentialMovingAverage
    average = kind(model, config.momentum, warm_up=config.warm_up)
    filled(model, 1)
    average.update()
    return average


def new_layer(model: nn.Sequential) -> None:
    model.append(filled(nn.Linear(1, 1, bias=False), 4))


def new_head(model: nn.Sequential) -> None:
    model[1] = filled(nn.Linear(1, 1, bias=False), 4)


def one_less(model: nn.Sequential) -> None:
    del model[0]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("change", "averages", "message"),
    [
        (new_layer, {"0.weight": 0.5, "1.weight": 0.5, "2.weight": 4.0}, "from now on: ['2.weight']; no more: []."),
        (new_head, {"0.weight": 0.5, "1.weight": 4.0}, "from now on: ['1.weight']; no more: []."),
        (one_less, {"0.weight": 0.5}, "from now on: []; no more: ['1.weight']."),
    ],
)
def test_old_tensors_keep_their_averages_and_new_ones_start_at_their_weights(
    change: Callable[[nn.Sequential], None],
    averages: dict[str, float],
    message: str,
    overlap: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, config = two(), EMAConfig(momentum=0.5, warm_up=0, overlap=overlap)
    average = averaged_once(model, config)
    change(model)
    now = followed(average, model, config, LOGGER)

    assert values(now) == averages
    assert now.steps == 1
    assert isinstance(now, OverlappedAverage) == overlap
    assert [text.partition("Averaged ")[2] for text in caplog.messages] == [message]
    now.close()


def test_a_model_that_has_not_changed_is_averaged_by_the_same_object(caplog: pytest.LogCaptureFixture) -> None:
    model, config = two(), EMAConfig(momentum=0.5, warm_up=0)
    average = averaged_once(model, config)

    assert followed(average, model, config, LOGGER) is average
    assert not caplog.messages


@pytest.mark.parametrize(("update_buffers", "told"), [(False, 0), (True, 1)])
def test_a_buffer_that_is_made_anew_is_told_of_only_where_it_is_averaged(
    update_buffers: bool, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    model, config = nn.BatchNorm1d(1), EMAConfig(momentum=0.5, warm_up=0, update_buffers=update_buffers)
    average = ExponentialMovingAverage(model, 0.5, warm_up=0, update_buffers=update_buffers)
    model.running_mean = torch.full((1,), 3.0)
    now = followed(average, model, config, LOGGER)

    assert now.averaged()["running_mean"].item() == 3
    assert len(caplog.messages) == told


def test_while_the_averages_are_in_the_model_it_is_left_as_it_is() -> None:
    model, config = two(), EMAConfig(momentum=0.5, warm_up=0)
    average = averaged_once(model, config)
    with average.applied():
        new_layer(model)
        assert followed(average, model, config, LOGGER) is average


class Doubles(nn.Module):
    """Adds its weights to the input; a second weight is there from some epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(1))])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return -sum((weight * batch.mean() for weight in self.weights), torch.zeros(1)).sum()


def test_a_model_that_grows_in_a_training_is_averaged_judged_and_saved_as_a_whole(tmp_path: Any) -> None:
    """Each step adds 1 to each weight. The second one is there from epoch 2 on and starts at 0."""

    class Grows(Hook):
        def before_epoch(self, run: Run, epoch: int) -> None:
            if epoch == 1:
                assert isinstance(run.model, Doubles)
                run.model.weights.append(nn.Parameter(torch.zeros(1)))
                assert run.optimizer is not None
                run.optimizer.add_param_group({"params": [run.model.weights[1]]})

    judged: list[list[float]] = []

    class Looks(Hook):
        def after_val(self, run: Run) -> None:
            assert isinstance(run.model, Doubles)
            judged.append([weight.item() for weight in run.model.weights])

    model = Doubles()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        train_loader=[torch.ones(1)] * 2,
        val_loader=[torch.ones(1)],
        epochs=2,
        hooks=[EMAHook(momentum=0.5, warm_up=0), Grows(), Looks(), CheckpointHook(save_best=False)],
        default_hooks=False,
        work_dir=tmp_path,
        device="cpu",
    )
    trainer.fit()

    # epoch 1: 0.5 * 0 + 0.5 * 1 = 0.5, 0.5 * 0.5 + 0.5 * 2 = 1.25; epoch 2 goes on with 3 and 4, and with 1 and 2
    assert judged == [[1.25], [3.0625, 1.25]]
    saved = read_checkpoint(tmp_path / "checkpoints/last.pth")
    assert {name: float(value) for name, value in saved["ema_state_dict"].items()} == {
        "weights.0": 3.0625,
        "weights.1": 1.25,
    }


class TestLazyModules:
    def lazy(self) -> nn.Sequential:
        return nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())

    def test_have_their_shape_after_the_first_forward(self) -> None:
        model = self.lazy()
        assert not has_shape(model)
        model(torch.ones(4, 3))
        assert has_shape(model)

    def test_are_averaged_from_their_first_weights_on(self) -> None:
        model, hook = self.lazy(), EMAHook(momentum=0.5, warm_up=0)
        first: list[torch.Tensor] = []

        class Notes(Hook):
            def before_optimizer_step(self) -> None:
                first.append(model[0].weight.detach().clone())

        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            functional.cross_entropy,
            train_loader=[(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0]))],
            epochs=1,
            hooks=[hook, Notes()],
            default_hooks=False,
            work_dir=None,
            device="cpu",
        )
        trainer.fit()

        averages = hook.averaged()
        assert averages is not None
        assert torch.equal(averages["0.weight"], torch.lerp(first[0], model[0].weight.detach(), 0.5))
        assert not torch.equal(first[0], model[0].weight)
