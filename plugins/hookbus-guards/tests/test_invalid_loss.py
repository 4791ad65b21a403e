"""The guard against invalid losses in the Trainer and in custom loops."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import build_checkpoint, write_checkpoint
from hookbus.errors import HookError, LoopError
from hookbus.testing import check_hook
from hookbus_guards import CheckInvalidLossHook

INF, NAN = math.inf, math.nan


class SumModel(nn.Module):
    """A model whose gradient is minus the batch: with a learning rate of 1, the weight is the sum of the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        box = -self.weight * 0 + batch.mean()
        cls = -self.weight * torch.nan_to_num(batch.mean(), 0, 0, 0)
        return {"loss": box + cls, "loss_cls": cls, "loss_box": box}


class WeightRecorder(Hook):
    """Record the weight and the number of optimizer steps after each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[float] = []
        self.steps: list[int] = []

    def after_train_iter(self, run: Run, model: SumModel) -> None:
        self.weights.append(float(model.weight.detach()))
        self.steps.append(run.steps_done)


def train(hook: CheckInvalidLossHook, values: Iterable[float], **options: Any) -> tuple[Run, WeightRecorder]:
    model, recorder = SumModel(), WeightRecorder()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        train_loader=[torch.tensor([value]) for value in values],
        hooks=[hook, recorder],
        **{"epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu", **options},
    )
    return trainer.fit(), recorder


def run_loop(hook: CheckInvalidLossHook, outputs: Iterable[Any], **options: Any) -> Run:
    """Run a custom loop that emits the given outputs of its steps."""
    bus = HookBus([hook])
    with bus.run(**options) as run:
        for i, output in enumerate(outputs):
            bus.emit("before_train_iter", batch_idx=i)
            bus.emit("after_train_iter", batch_idx=i, outputs=output)
            if run.should_stop:
                break
    return run


def add_values(run: Run, weight: nn.Parameter, values: Iterable[float], *, checks_skip: bool) -> None:
    """Run a custom loop that adds each value to a weight.

    Args:
        run: Active run.
        weight: Weight to train.
        values: Increment per iteration.
        checks_skip: Whether the loop checks `run.should_skip_iter`.
    """
    optimizer = run.optimizer or torch.optim.SGD([weight], lr=1.0)
    for i, value in enumerate(values):
        run.bus.emit("before_train_iter", batch_idx=i)
        optimizer.zero_grad()
        loss = -weight * value
        run.bus.emit("after_forward", batch_idx=i, loss=loss)
        if not (checks_skip and run.should_skip_iter):
            loss.backward()
            optimizer.step()
        run.bus.emit("after_train_iter", batch_idx=i, loss=loss)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"interval": 1, "policy": "skip"},
        pytest.param({"policy": "stop", "interval": 2}, marks=pytest.mark.slow),
        pytest.param({"before_step": True}, marks=pytest.mark.slow),
    ],
)
def test_hook_passes_the_conformance_checks(settings: dict[str, Any]) -> None:
    check_hook(CheckInvalidLossHook, **settings)


class TestChecks:
    @pytest.mark.parametrize(("interval", "iteration"), [(1, 1), (5, 5)])
    def test_error_names_the_term_and_the_iteration(self, interval: int, iteration: int) -> None:
        outputs = [{"cls": 0.3, "box": INF}] * 8

        with pytest.raises(
            LoopError, match=rf"not finite at iteration {iteration}, epoch 1: box is inf; cls is 0\.3\."
        ):
            run_loop(CheckInvalidLossHook(interval=interval), outputs)

    def test_error_names_learning_rate_last_good_loss_and_hook(self) -> None:
        with pytest.raises(LoopError) as caught:
            train(CheckInvalidLossHook(interval=1), [2.0, NAN, 1.0])

        assert str(caught.value) == (
            "The loss is not finite at iteration 2, epoch 1: loss_box is nan; loss is nan; loss_cls is 0. Learning "
            "rate 1; last good loss: 2 at iteration 1. Lower the learning rate, clip the gradients, or inspect the "
            "data of this batch."
        )
        assert "hook 'check_invalid_loss'" in caught.value.__notes__[0]

    def test_loss_is_checked_only_at_the_interval(self) -> None:
        run = run_loop(CheckInvalidLossHook(interval=3), [1.0, NAN, 1.0, NAN, NAN, 1.0])

        assert run.outcome == "finished"

    def test_check_before_the_step_does_not_modify_the_weights(self) -> None:
        bus, weight = HookBus([CheckInvalidLossHook(interval=1, before_step=True)]), nn.Parameter(torch.zeros(()))
        with pytest.raises(LoopError, match="iteration 2"), bus.run() as run:
            add_values(run, weight, [1.0, NAN], checks_skip=False)
        with pytest.raises(LoopError, match="iteration 2"):
            train(CheckInvalidLossHook(interval=1, before_step=True), [1.0, NAN])

        assert weight.item() == 1.0

    def test_check_copies_one_value_from_the_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reads: list[str] = []
        for name in ("item", "tolist"):
            real = getattr(Tensor, name)
            monkeypatch.setattr(Tensor, name, lambda self, real=real, name=name: reads.append(name) or real(self))
        terms = {f"loss_{i}": torch.tensor(float(i)) for i in range(5)}
        run_loop(CheckInvalidLossHook(interval=2), [terms] * 4)

        means = ["tolist"] * 5  # of the terms, for `run.history` at the end
        assert reads == ["tolist", "tolist", *means]

    def test_missing_loss_is_an_error(self) -> None:
        with pytest.raises(HookError, match=r"the iteration returned no loss\. Return the loss from the step"):
            run_loop(CheckInvalidLossHook(interval=1), [None])

    def test_iterations_that_another_hook_skips_are_not_checked(self) -> None:
        class Skips(Hook):
            def before_train_iter(self, run: Run) -> None:
                run.request_skip_iter()

        for settings in ({"before_step": True}, {}):
            bus = HookBus([Skips(), CheckInvalidLossHook(interval=1, **settings)])
            with bus.run() as run:
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")
            assert run.outcome == "finished"


class TestStopping:
    def test_policy_stop_ends_the_run_with_the_message_as_its_reason(self) -> None:
        run, recorder = train(CheckInvalidLossHook(interval=1, policy="stop"), [1.0, INF, 1.0])

        assert run.outcome == "aborted"
        assert run.iters_done == 2
        assert run.stop_reasons[0].startswith("check_invalid_loss: The loss is not finite at iteration 2")
        assert recorder.steps == [1, 2]

    def test_policy_stop_before_the_step_prevents_the_optimizer_step(self) -> None:
        run, recorder = train(CheckInvalidLossHook(interval=1, policy="stop", before_step=True), [1.0, INF, 1.0])

        assert (run.outcome, run.iters_done) == ("stopped", 2)
        assert recorder.steps == [1, 1]
        assert recorder.weights == [1.0, 1.0]


class TestSkipping:
    def test_invalid_micro_batch_is_skipped_and_training_continues(self, caplog: pytest.LogCaptureFixture) -> None:
        hook = CheckInvalidLossHook(interval=1, policy="skip")
        with caplog.at_level(logging.WARNING, "hookbus"):
            run, recorder = train(hook, [1.0, NAN, 3.0])

        assert (run.outcome, run.iters_done, run.steps_done) == ("finished", 3, 2)
        assert recorder.weights == [1.0, 1.0, 4.0]
        assert hook.skipped == 1
        assert "iteration 2, epoch 1: loss_box is nan; loss is nan" in caplog.text
        assert "The micro-batch is skipped." in caplog.text

    def test_accumulation_group_replaces_a_skipped_micro_batch(self) -> None:
        _, recorder = train(CheckInvalidLossHook(interval=1, policy="skip"), [1.0, NAN, 3.0, 5.0, 7.0], accumulate=2)

        assert recorder.steps == [0, 0, 1, 1, 2]
        assert recorder.weights == [0.0, 0.0, 2.0, 2.0, 8.0]

    def test_more_consecutive_skips_than_max_skips_are_an_error(self) -> None:
        hook = CheckInvalidLossHook(interval=1, policy="skip", max_skips=2)

        assert train(hook, [NAN, NAN, 1.0, NAN, NAN, 1.0])[0].outcome == "finished"
        with pytest.raises(LoopError, match=r"iteration 4.* 3 consecutive micro-batches are invalid; max_skips is 2\."):
            train(CheckInvalidLossHook(interval=1, policy="skip", max_skips=2), [1.0, NAN, NAN, NAN])

    def test_custom_loop_that_checks_should_skip_iter_skips(self) -> None:
        weight = nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        with HookBus([CheckInvalidLossHook(interval=1, policy="skip")]).run(optimizer=optimizer) as run:
            add_values(run, weight, [1.0, NAN, 3.0], checks_skip=True)

        assert weight.item() == 4.0
        assert run.steps_done == 2

    def test_optimizer_step_despite_a_skip_request_is_an_error(self) -> None:
        weight = nn.Parameter(torch.zeros(()))
        run = HookBus([CheckInvalidLossHook(interval=1, policy="skip")]).run(
            optimizer=torch.optim.SGD([weight], lr=1.0)
        )
        message = r"the loop performed an optimizer step\. Check `run\.should_skip_iter`"
        with pytest.raises(HookError, match=message), run as running:
            add_values(running, weight, [NAN], checks_skip=False)

    def test_custom_loop_without_after_forward_is_an_error(self) -> None:
        with pytest.raises(HookError, match=r"this loop emits no after_forward\. Emit `after_forward` with"):
            run_loop(CheckInvalidLossHook(interval=1, before_step=True), [{"loss": 1.0}])


class TestResume:
    def test_last_good_loss_and_consecutive_skips_are_restored(self, tmp_path: Path) -> None:
        path, settings = tmp_path / "saved.pth", {"interval": 1, "policy": "skip", "max_skips": 2}
        bus, model = HookBus([CheckInvalidLossHook(settings)]), nn.Linear(1, 1)
        with bus.run(model=model) as run:
            for i, loss in enumerate([0.5, NAN, NAN]):
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_forward", batch_idx=i, loss=loss)
                bus.emit("after_train_iter", batch_idx=i)
            write_checkpoint(path, build_checkpoint(run), 1)
        bus = HookBus([CheckInvalidLossHook(settings)])
        message = r"iteration 4.*last good loss: 0\.5 at iteration 1\. 3 consecutive micro-batches are invalid"
        with bus.run(model=model, resume=path):
            bus.emit("before_train_iter")
            with pytest.raises(LoopError, match=message):
                bus.emit("after_forward", loss=NAN)

    def test_new_run_on_the_same_bus_resets_the_state(self) -> None:
        hook = CheckInvalidLossHook(interval=1)
        run_loop(hook, [1.0])
        with hook.run.bus.run(fresh=True):
            hook.run.bus.emit("before_train_iter")
            assert hook.last_good is None
