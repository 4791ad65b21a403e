"""Access of hooks to the loop through the run, in the Trainer and in a custom loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus import Hook, HookBus, Run, Trainer, hookimpl
from hookbus.errors import ConfigError, HookError, LoopError, RequestError
from hookbus.testing import fake_training
from tests.toys import net, pairs

BATCHES = [(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [0.0]]))] * 4


def make_trainer(*hooks: Hook, **options: Any) -> Trainer:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0625)
    settings = {"loss_fn": nn.functional.mse_loss, "epochs": 1, "device": "cpu", **options}
    return Trainer(model, optimizer, train_loader=BATCHES, hooks=[*hooks], default_hooks=False, **settings)


def test_hook_changes_the_number_of_accumulated_micro_batches() -> None:
    class Accumulate(Hook):
        def before_train(self, run: Run) -> None:
            assert run.accumulate == 1
            run.accumulate = 2

    trainer = make_trainer(Accumulate())
    run = trainer.fit()
    assert (run.iters_done, run.steps_done, run.accumulate) == (4, 2, 2)


def test_hook_that_replaces_the_step_calls_the_default_one() -> None:
    class Halves(Hook):
        def train_step(self, run: Run, batch: Any) -> Any:
            inputs, targets = batch
            parts = [(inputs[:1], targets[:1]), (inputs[1:], targets[1:])]
            return run.train_micro_batches(parts, [0.5, 0.5])[0]

    class Whole(Hook):
        def train_step(self, run: Run, batch: Any) -> Any:
            return run.train_step(batch)

    weights = [make_trainer(*hooks).fit().model.weight for hooks in ((), (Whole(),), (Halves(),))]
    # The gradient of mean((w x)^2) is 2 w (1 + 9) / 2 = 10 w, so each of the four steps multiplies w by 1 - 10 / 16.
    assert [weight.item() for weight in weights] == [0.375**4] * 3


def test_custom_loop_has_no_default_step() -> None:
    with HookBus().run() as run:
        assert run.accumulate is None
        assert run.eval_metrics == {}
        for operation in (lambda: run.train_step(None), lambda: run.train_micro_batches([], [])):
            with pytest.raises(LoopError, match=r"run\.train_\w+: the loop of this run is not a Trainer"):
                operation()
        with pytest.raises(LoopError, match="run.accumulate: the loop of this run is not a Trainer"):
            run.accumulate = 2


def test_invalid_number_of_micro_batches_is_refused() -> None:
    with make_trainer().runs.run_scope("train") as run, pytest.raises(ConfigError, match="accumulate"):
        run.accumulate = 0


def test_run_can_validate_if_it_has_data_or_a_function() -> None:
    with HookBus().run() as run:
        assert not run.can_validate
    with HookBus().run(validate=lambda run: None) as run:
        assert run.can_validate


class Double(Hook):
    """Double the inputs of every batch."""

    def before_train_iter(self, run: Run, batch: Any) -> None:
        inputs, targets = run.resolve_batch(batch)
        run.replace_batch((inputs * 2, targets))


class Naive(Hook):
    """Replace every batch, without regard to other hooks."""

    def before_train_iter(self, run: Run, batch: Any) -> None:
        run.replace_batch(batch)


class Penalty(Hook):
    """Add a constant to the loss, times the sum of the weights."""

    def after_forward(self, run: Run, loss: Tensor) -> None:
        assert run.model is not None
        run.replace_loss(loss + 3 * sum(p.sum() for p in run.model.parameters()))


class Seen(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[str, float]] = []
        self.losses: list[tuple[str, float]] = []

    def before_train_iter(self, batch: Any) -> None:
        self.batches.append(("before_train_iter", float(batch[0].sum())))

    def after_forward(self, batch: Any, loss: Tensor) -> None:
        self.batches.append(("after_forward", float(batch[0].sum())))
        self.losses.append(("after_forward", float(loss.detach())))

    def after_backward(self, loss: Tensor) -> None:
        self.losses.append(("after_backward", float(loss.detach())))

    def after_train_iter(self, run: Run, batch: Any, loss: Tensor) -> None:
        self.batches.append(("after_train_iter", float(batch[0].sum())))
        self.losses.append(("after_train_iter", float(loss.detach())))


def train(*hooks: object, step_fn: Any = None) -> tuple[Tensor, Run]:
    """Train one weight of 1 by one step on the input 1, with learning rate 1 and its square as the loss."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = [(torch.ones(1, 1), torch.zeros(1, 1))]
    options: dict[str, Any] = {"epochs": 1, "work_dir": None, "default_hooks": False}
    run = Trainer(model, optimizer, nn.functional.mse_loss, data, hooks=hooks, **options).fit()
    return model.weight.detach(), run


class TestTrainer:
    def test_step_and_later_points_receive_the_new_batch(self) -> None:
        seen = Seen()
        # The loss of the input 2 is (2 w)^2, with the gradient 8.
        weight, run = train(Double(), seen)
        assert weight.item() == -7
        assert seen.batches == [("before_train_iter", 1), ("after_forward", 2), ("after_train_iter", 2)]
        assert (run.samples_done, run.metrics["loss"]) == (1, 4)

    def test_backward_pass_and_log_use_the_new_loss(self) -> None:
        seen = Seen()
        weight, run = train(Penalty(priority=900), seen)
        # The loss w^2 + 3 w has the gradient 5.
        assert weight.item() == -4
        assert seen.losses == [("after_forward", 1), ("after_backward", 4), ("after_train_iter", 4)]
        assert run.metrics["loss"] == 4

    def test_hooks_that_read_earlier_replacements_combine(self) -> None:
        weight, _ = train(Double(name="first"), Double(name="second"))
        # The loss of the input 4 is (4 w)^2, with the gradient 32.
        assert weight.item() == -31

    def test_replacement_that_would_discard_another_one_is_an_error(self) -> None:
        with pytest.raises(
            HookError, match=r"'double' has replaced the batch .* second one of 'naive'.*run.resolve_batch"
        ):
            train(Double(), Naive())

    def test_loss_of_one_element_is_reduced(self) -> None:
        class Reshape(Hook):
            def after_forward(self, run: Run, loss: Tensor) -> None:
                run.replace_loss(loss.reshape(1, 1) * 2)

        assert train(Reshape())[0].item() == -3

    @pytest.mark.parametrize(
        ("make", "got"),
        [
            (lambda loss: loss.detach(), r"shape \(\), requires_grad=False"),
            (lambda loss: loss.expand(2), r"shape \(2,\), requires_grad=True"),
            (lambda loss: 1.0, "float"),
        ],
    )
    def test_loss_that_cannot_be_trained_on_names_the_hook(self, make: Any, got: str) -> None:
        class Replace(Hook):
            def after_forward(self, run: Run, loss: Tensor) -> None:
                run.replace_loss(make(loss))

        with pytest.raises(HookError, match=f"that requires a gradient, got {got}") as caught:
            train(Replace())
        assert "hook 'replace'" in caught.value.__notes__[0]

    def test_skipped_iteration_discards_the_replacement(self) -> None:
        class Skip(Hook):
            def before_train_iter(self, run: Run) -> None:
                run.request_skip_iter()

        weight, _ = train(Skip(priority=10), Double())
        assert weight.item() == 1
        weight, _ = train(Skip(priority=900), Double())
        assert weight.item() == 1

    def test_step_of_a_hook_that_ignores_the_new_loss_is_an_error(self) -> None:
        class Step(Hook):
            def train_step(self, run: Run, batch: Any) -> dict[str, Any]:
                loss = run.model(batch[0]).sum()
                run.bus.emit("after_forward", batch=batch, loss=loss)
                return {"loss": loss.detach()}

        with pytest.raises(LoopError, match="'penalty' has replaced the loss of iteration 1, epoch 1, but the loop"):
            train(Step(), Penalty())

    def test_accumulated_micro_batches_are_each_replaced(self) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = Seen()
        options: dict[str, Any] = {"epochs": 1, "work_dir": None, "default_hooks": False, "accumulate": 2}
        Trainer(model, optimizer, nn.functional.cross_entropy, pairs(4), hooks=[Double(), seen], **options).fit()
        sums = [value for _, value in seen.batches]
        assert sums[1::3] == [2 * value for value in sums[0::3]]


class TestCustomLoop:
    def test_loop_reads_batch_and_loss(self) -> None:
        plain, changed = fake_training(epochs=1), fake_training([Double(), Penalty()], epochs=1)
        assert not torch.equal(plain.model[0].weight, changed.model[0].weight)

    def test_loop_that_uses_its_own_batch_is_an_error(self) -> None:
        bus = HookBus([Naive()])
        message = (
            "run.replace_batch: 'naive' has replaced the batch of iteration 1, epoch 1, but the loop has used its own. "
            r"Add `batch = run.resolve_batch\(batch\)` to the loop, after before_train_iter."
        )
        with bus.run():
            bus.emit("before_train_iter", batch=[1])
            with pytest.raises(LoopError, match=message):
                bus.emit("after_train_iter", batch=[1])

    def test_loop_without_replacements_reads_its_own_values(self) -> None:
        bus = HookBus()
        with bus.run() as run:
            batch = [1]
            bus.emit("before_train_iter", batch=batch)
            assert run.resolve_batch(batch) is batch
            assert run.resolve_loss(batch) is batch
            bus.emit("after_train_iter", batch=batch)

    def test_replacement_of_a_failed_iteration_is_forgotten(self) -> None:
        class Once(Hook):
            def before_train_iter(self, run: Run, batch: Any) -> None:
                if batch == [0]:
                    run.replace_batch([5])

        bus = HookBus([Once()])
        with bus.run() as run:
            bus.emit("before_train_iter", batch=[0])
            bus.emit("after_train_iter", batch=run.resolve_batch([0]))
            bus.emit("before_train_iter", batch=[1])
            assert run.resolve_batch([1]) == [1]
            bus.emit("after_train_iter", batch=[1])


@pytest.mark.parametrize(("point", "place"), [("before_train", "at before_train"), (None, "outside of an event")])
def test_other_places_are_refused(point: str | None, place: str) -> None:
    bus = HookBus()
    if point is not None:
        bus.on(point)(lambda run: run.replace_batch([1]))
    with bus.run() as run, pytest.raises(RequestError, match=f"called {place}. Call it at before_train_iter."):
        bus.emit(point) if point is not None else run.replace_batch([1])


def test_wrapped_step_receives_the_new_batch() -> None:
    class Wrapper(Hook):
        @hookimpl(wrapper=True)
        def train_step(self, batch: Any) -> Iterator[None]:
            self.value = float(batch[0].sum())
            return (yield)

    wrapper = Wrapper()
    train(Double(), wrapper)
    assert wrapper.value == 2
