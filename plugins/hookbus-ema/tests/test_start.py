"""Averages that start during the training: at the weights of that time, which validations use until then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Priority, Trainer
from hookbus._run.run import Run
from hookbus.checkpoint.state import read_checkpoint
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook

from .test_hook import CountUp, Saver, ValidationRequester, count_up, get_weight, halving, one_weight, set_weights


class Record(Hook):
    """Record the average after each iteration, None before its start, and the weight that validations evaluate."""

    priority = Priority.HIGH  # called after the average is updated

    def __init__(self) -> None:
        super().__init__()
        self.averages: list[float | None] = []
        self.validated: list[float] = []

    def after_train_iter(self, run: Run) -> None:
        averaged = run.weights.averaged()
        self.averages.append(None if averaged is None else get_weight(averaged))

    def before_val(self, model: nn.Module) -> None:
        self.validated.append(get_weight(model.state_dict()))


@pytest.mark.parametrize(
    ("settings", "averages"),
    [
        # The weight is the number of steps. The average starts with it and goes halfway to each later one.
        ({}, [0.5, 1.25, 2.125, 3.0625, 4.03125, 5.015625]),
        ({"start_step": 1}, [1, 1.5, 2.25, 3.125, 4.0625, 5.03125]),
        ({"start_step": 4}, [None, None, None, 4, 4.5, 5.25]),
        ({"start_step": 3, "interval": 2}, [None, None, None, 3.5, 3.5, 4.75]),
        ({"start_epoch": 1}, [None, None, 2.5, 3.25, 4.125, 5.0625]),
        ({"start_epoch": 2}, [None, None, None, None, 4.5, 5.25]),
        ({"start_step": 7}, [None] * 6),
    ],
)
def test_average_starts_at_the_weights_of_that_time(settings: dict[str, Any], averages: list[float | None]) -> None:
    record = Record()
    count_up(halving(**settings), record, epochs=3, batches=2)
    assert record.averages == averages


def test_raw_weights_are_validated_before_the_start() -> None:
    record = Record()
    count_up(halving(start_step=2), ValidationRequester(1, 2, 3), record, val_loader=[torch.ones(2)], batches=4)
    assert record.validated == [1, 2, 2.5, 3.25]


def test_momentum_warms_up_from_the_start_on() -> None:
    record = Record()
    count_up(EMAHook(momentum=0.9, warm_up=4, start_step=2), record, batches=4)
    # The first update has the momentum (1 + 1) / (4 + 1), the second one (1 + 2) / (4 + 2).
    first = 0.4 * 2 + 0.6 * 3
    assert record.averages == [None, 2, pytest.approx(first), pytest.approx(0.5 * first + 0.5 * 4)]


def test_average_of_a_loop_without_an_optimizer_starts_after_an_iteration() -> None:
    model, hook = one_weight(), halving(start_step=2)
    bus = HookBus([record := Record(), hook])
    with bus.run(model=model) as run:
        list(set_weights(run, model, [8, 6, 4, 2]))
    assert record.averages == [None, 6, 5, 3.5]


def test_files_and_best_weights_are_raw_before_the_start(tmp_path: Path) -> None:
    def train(epochs: int) -> Run:
        saver = CheckpointHook(interval=1, best_metric="loss", max_keep_ckpts=None)
        options: dict[str, Any] = {"val_loader": [torch.ones(2)], "work_dir": tmp_path, "resume": "auto", "batches": 2}
        return count_up(halving(start_epoch=1), saver, epochs=epochs, **options)[0]

    best = train(1).best["val/loss"]
    assert (best.value, best.weights) == (-2, "raw")
    assert "ema_state_dict" not in read_checkpoint(tmp_path / "checkpoints/epoch_1.pth")
    best = train(2).best["val/loss"]
    assert (best.value, best.weights) == (-3.25, "averaged")
    assert get_weight(read_checkpoint(tmp_path / "checkpoints/epoch_2.pth")["ema_state_dict"]) == 3.25


@pytest.mark.parametrize("settings", [{"start_step": 4}, {"start_epoch": 2}, {"start_step": 3, "interval": 2}])
@pytest.mark.parametrize("iteration", [1, 3, 4, 5])
def test_resumed_run_starts_the_same_average(settings: dict[str, Any], iteration: int, tmp_path: Path) -> None:
    whole, rest = Record(), Record()
    count_up(halving(**settings), Saver(iteration), whole, epochs=4, batches=2, work_dir=tmp_path)
    file = tmp_path / f"checkpoints/iter_{iteration}.pth"
    count_up(halving(**settings), rest, epochs=4, batches=2, model=CountUp(), work_dir=None, resume=file)
    assert rest.averages == whole.averages[iteration:]


def test_start_that_the_run_does_not_reach_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    count_up(halving(start_epoch=2), epochs=2)
    count_up(halving(start_step=8, warm_up=0), epochs=2)
    reports = [message for message in caplog.messages if "requires" in message]
    assert ["3 epochs for 'start_epoch'" in reports[0], "9 optimizer steps for 'start_step'" in reports[1]] == [
        True
    ] * 2


def test_lazy_layers_start_after_their_first_step() -> None:
    torch.manual_seed(0)
    model, hook = nn.LazyLinear(2), halving(start_step=1)
    trainer = Trainer(
        model,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        nn.functional.cross_entropy,
        [(torch.ones(2, 3), torch.tensor([0, 1]))],
        epochs=1,
        hooks=[hook],
        default_hooks=False,
        work_dir=None,
        device="cpu",
    )
    trainer.fit()
    assert hook.average is not None
    assert torch.equal(hook.average.averaged()["weight"], model.weight)
