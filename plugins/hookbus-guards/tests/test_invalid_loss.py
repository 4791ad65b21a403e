"""What the guard does in a training, in the Trainer and in loops of one's own."""

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
from hookbus.errors import HookError, LoopError
from hookbus.state import collect, write_checkpoint
from hookbus.testing import check_hook
from hookbus_guards import CheckInvalidLossHook

INF, NAN = math.inf, math.nan


class Upwards(nn.Module):
    """Adds up what the batches hold, with a rate of 1: the gradient is minus the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        box = -self.weight * 0 + batch.mean()
        cls = -self.weight * torch.nan_to_num(batch.mean(), 0, 0, 0)
        return {"loss": box + cls, "loss_cls": cls, "loss_box": box}


class Watch(Hook):
    """Notes the weight and the updates after each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[float] = []
        self.steps: list[int] = []

    def after_train_iter(self, run: Run, model: Upwards) -> None:
        self.weights.append(float(model.weight.detach()))
        self.steps.append(run.steps_done)


def train(hook: CheckInvalidLossHook, values: Iterable[float], **options: Any) -> tuple[Run, Watch]:
    model, watch = Upwards(), Watch()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        train_loader=[torch.tensor([value]) for value in values],
        hooks=[hook, watch],
        **{"epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu", **options},
    )
    return trainer.fit(), watch


def by_hand(hook: CheckInvalidLossHook, outputs: Iterable[Any], **options: Any) -> Run:
    """A loop of one's own that only tells what its steps returned."""
    bus = HookBus([hook])
    with bus.run(**options) as run:
        for i, each in enumerate(outputs):
            bus.emit("before_train_iter", batch_idx=i)
            bus.emit("after_train_iter", batch_idx=i, outputs=each)
            if run.should_stop:
                break
    return run


def update(run: Run, weight: nn.Parameter, values: Iterable[float], *, asks: bool) -> None:
    """A loop of one's own that adds each value to a weight."""
    optimizer = run.optimizer or torch.optim.SGD([weight], lr=1.0)
    for i, value in enumerate(values):
        run.bus.emit("before_train_iter", batch_idx=i)
        optimizer.zero_grad()
        loss = -weight * value
        run.bus.emit("after_forward", batch_idx=i, loss=loss)
        if not (asks and run.should_skip_iter):
            loss.backward()
            optimizer.step()
        run.bus.emit("after_train_iter", batch_idx=i, loss=loss)


@pytest.mark.parametrize(
    "settings", [{}, {"interval": 1, "policy": "skip"}, {"policy": "stop", "interval": 2}, {"before_step": True}]
)
def test_it_keeps_what_every_hook_promises(settings: dict[str, Any]) -> None:
    check_hook(CheckInvalidLossHook, **settings)


class TestLooking:
    @pytest.mark.parametrize(("interval", "iteration"), [(1, 1), (5, 5)])
    def test_names_the_term_and_the_iteration(self, interval: int, iteration: int) -> None:
        outputs = [{"cls": 0.3, "box": INF}] * 8

        with pytest.raises(
            LoopError, match=rf"not finite at iteration {iteration}, epoch 1: box is inf; cls is 0\.3\."
        ):
            by_hand(CheckInvalidLossHook(interval=interval), outputs)

    def test_tells_rate_and_last_good_loss_and_who_it_is(self) -> None:
        with pytest.raises(LoopError) as caught:
            train(CheckInvalidLossHook(interval=1), [2.0, NAN, 1.0])

        assert str(caught.value) == (
            "The loss is not finite at iteration 2, epoch 1: loss_box is nan; loss is nan; loss_cls is 0. Learning "
            "rate 1; last good loss: 2 at iteration 1. Lower the learning rate, clip the gradients, or look at the "
            "data of this batch."
        )
        assert "hook 'check_invalid_loss'" in caught.value.__notes__[0]

    def test_is_done_only_where_it_is_due(self) -> None:
        run = by_hand(CheckInvalidLossHook(interval=3), [1.0, NAN, 1.0, NAN, NAN, 1.0])

        assert run.outcome == "finished"

    def test_before_the_step_leaves_the_weights_as_they_were(self) -> None:
        bus, weight = HookBus([CheckInvalidLossHook(interval=1, before_step=True)]), nn.Parameter(torch.zeros(()))
        with pytest.raises(LoopError, match="iteration 2"), bus.run() as run:
            update(run, weight, [1.0, NAN], asks=False)
        with pytest.raises(LoopError, match="iteration 2"):
            train(CheckInvalidLossHook(interval=1, before_step=True), [1.0, NAN])

        assert weight.item() == 1.0

    def test_reads_one_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reads: list[str] = []
        for name in ("item", "tolist"):
            real = getattr(Tensor, name)
            monkeypatch.setattr(Tensor, name, lambda self, real=real, name=name: reads.append(name) or real(self))
        terms = {f"loss_{i}": torch.tensor(float(i)) for i in range(5)}
        by_hand(CheckInvalidLossHook(interval=2), [terms] * 4)

        assert reads == ["tolist", "tolist"]

    def test_without_a_loss_says_what_to_return(self) -> None:
        with pytest.raises(HookError, match=r"finds no number in what the iteration returned: let the step return"):
            by_hand(CheckInvalidLossHook(interval=1), [None])

    def test_leaves_iterations_alone_that_another_hook_left_out(self) -> None:
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
    def test_ends_the_run_with_the_message_as_its_reason(self) -> None:
        run, watch = train(CheckInvalidLossHook(interval=1, policy="stop"), [1.0, INF, 1.0])

        assert run.outcome == "aborted"
        assert run.iters_done == 2
        assert run.stop_reasons[0].startswith("check_invalid_loss: The loss is not finite at iteration 2")
        assert watch.steps == [1, 2]

    def test_before_the_step_makes_no_update(self) -> None:
        run, watch = train(CheckInvalidLossHook(interval=1, policy="stop", before_step=True), [1.0, INF, 1.0])

        assert (run.outcome, run.iters_done) == ("stopped", 2)
        assert watch.steps == [1, 1]
        assert watch.weights == [1.0, 1.0]


class TestLeavingOut:
    def test_makes_no_update_of_it_and_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        hook = CheckInvalidLossHook(interval=1, policy="skip")
        with caplog.at_level(logging.WARNING, "hookbus"):
            run, watch = train(hook, [1.0, NAN, 3.0])

        assert (run.outcome, run.iters_done, run.steps_done) == ("finished", 3, 2)
        assert watch.weights == [1.0, 1.0, 4.0]
        assert hook.skipped == 1
        assert "iteration 2, epoch 1: loss_box is nan; loss is nan" in caplog.text
        assert "The micro-batch is left out." in caplog.text

    def test_lets_a_group_take_one_more(self) -> None:
        _, watch = train(CheckInvalidLossHook(interval=1, policy="skip"), [1.0, NAN, 3.0, 5.0, 7.0], accumulate=2)

        assert watch.steps == [0, 0, 1, 1, 2]
        assert watch.weights == [0.0, 0.0, 2.0, 2.0, 8.0]

    def test_too_many_in_a_row_are_an_error(self) -> None:
        hook = CheckInvalidLossHook(interval=1, policy="skip", max_skips=2)

        assert train(hook, [NAN, NAN, 1.0, NAN, NAN, 1.0])[0].outcome == "finished"
        with pytest.raises(LoopError, match=r"iteration 4.* That makes 3 in a row; max_skips is 2\."):
            train(CheckInvalidLossHook(interval=1, policy="skip", max_skips=2), [1.0, NAN, NAN, NAN])

    def test_works_in_a_loop_that_asks(self) -> None:
        weight = nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        with HookBus([CheckInvalidLossHook(interval=1, policy="skip")]).run(optimizer=optimizer) as run:
            update(run, weight, [1.0, NAN, 3.0], asks=True)

        assert weight.item() == 4.0
        assert run.steps_done == 2

    def test_a_loop_that_does_not_ask_is_told(self) -> None:
        weight = nn.Parameter(torch.zeros(()))
        run = HookBus([CheckInvalidLossHook(interval=1, policy="skip")]).run(
            optimizer=torch.optim.SGD([weight], lr=1.0)
        )
        message = r"the loop made an update all the same: let it look at run\.should_skip_iter"
        with pytest.raises(HookError, match=message), run as running:
            update(running, weight, [NAN], asks=False)

    def test_a_loop_that_does_not_show_its_loss_in_time_is_told(self) -> None:
        with pytest.raises(HookError, match=r"this loop emits no after_forward: emit it between forward and backward"):
            by_hand(CheckInvalidLossHook(interval=1, before_step=True), [{"loss": 1.0}])


class TestResume:
    def test_goes_on_with_the_last_good_loss_and_the_row(self, tmp_path: Path) -> None:
        path, settings = tmp_path / "saved.pth", {"interval": 1, "policy": "skip", "max_skips": 2}
        bus, model = HookBus([CheckInvalidLossHook(settings)]), nn.Linear(1, 1)
        with bus.run(model=model) as run:
            for i, loss in enumerate([0.5, NAN, NAN]):
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_forward", batch_idx=i, loss=loss)
                bus.emit("after_train_iter", batch_idx=i)
            write_checkpoint(path, collect(run), 1)
        bus = HookBus([CheckInvalidLossHook(settings)])
        message = r"iteration 4.*last good loss: 0\.5 at iteration 1\. That makes 3 in a row"
        with bus.run(model=model, resume=path):
            bus.emit("before_train_iter")
            with pytest.raises(LoopError, match=message):
                bus.emit("after_forward", loss=NAN)

    def test_a_run_from_zero_on_the_same_bus_begins_anew(self) -> None:
        hook = CheckInvalidLossHook(interval=1)
        by_hand(hook, [1.0])
        with hook.run.bus.run(fresh=True):
            hook.run.bus.emit("before_train_iter")
            assert hook.last_good is None
