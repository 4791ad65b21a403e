"""Points of a training with validation, test, save and load: their number, order, and what hooks can do at them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Hook, HookBus, Trainer
from hookbus.errors import PointError
from hookbus.lifecycle import POINTS
from hookbus.testing import RecordingBus, fingerprint
from tests.toys import Saver, net, pairs, trainer

CALLS = {
    "before_run": 2,  # of fit and of test
    "after_run": 2,
    "before_train": 1,
    "after_train": 1,
    "before_train_epoch": 2,
    "after_train_epoch": 2,
    "before_train_iter": 6,
    "after_train_iter": 6,
    "before_val": 2,
    "after_val": 2,
    "before_val_epoch": 2,
    "after_val_epoch": 2,
    "before_val_iter": 4,
    "after_val_iter": 4,
    "before_test": 1,
    "after_test": 1,
    "before_test_epoch": 1,
    "after_test_epoch": 1,
    "before_test_iter": 1,
    "after_test_iter": 1,
    "before_save_checkpoint": 2,
    "after_load_checkpoint": 1,
}
"""Number of events in two epochs of three batches, with two validation batches and one test batch."""


class CallRecorder(Hook):
    """Record the calls of the methods that are named like a point."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []


def _make_listener(point: str) -> Callable[[CallRecorder], None]:
    return lambda self: self.calls.append(point)


for _point in CALLS:
    setattr(CallRecorder, _point, _make_listener(_point))


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Calls of a training that resumes from its first checkpoint, and of a test."""
    work_dir = tmp_path_factory.mktemp("run")
    trainer(Saver("after_epoch"), epochs=1, work_dir=work_dir / "first").fit()
    recorder = CallRecorder()
    loaders = {"val_loader": pairs(2), "test_loader": pairs(1)}
    path = work_dir / "first" / "checkpoints" / "iter_3.pth"
    loaded = trainer(recorder, Saver("after_epoch"), epochs=3, work_dir=work_dir / "second", resume=path, **loaders)
    loaded.fit()
    loaded.test()
    return recorder.calls


@pytest.mark.parametrize(("point", "count"), CALLS.items(), ids=list(CALLS))
def test_method_named_like_a_point_is_called_at_each_event(calls: list[str], point: str, count: int) -> None:
    assert calls.count(point) == count


def test_listed_points_are_twenty_two_of_the_lifecycle() -> None:
    assert len(CALLS) == 22
    assert CALLS.keys() <= POINTS.keys()


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("before_run", "after_load_checkpoint"),
        ("after_load_checkpoint", "before_train"),
        ("before_train", "before_train_epoch"),
        ("before_train_epoch", "before_train_iter"),
        ("before_train_iter", "after_train_iter"),
        ("after_train_iter", "after_train_epoch"),
        ("after_train_epoch", "before_val"),
        ("before_val", "before_val_epoch"),
        ("before_val_epoch", "before_val_iter"),
        ("before_val_iter", "after_val_iter"),
        ("after_val_iter", "after_val_epoch"),
        ("after_val_epoch", "after_val"),
        ("after_val", "before_save_checkpoint"),
        ("before_save_checkpoint", "after_train"),
        ("after_train", "after_run"),
        ("after_run", "before_test"),
        ("before_test", "before_test_epoch"),
        ("before_test_epoch", "before_test_iter"),
        ("before_test_iter", "after_test_iter"),
        ("after_test_iter", "after_test_epoch"),
        ("after_test_epoch", "after_test"),
    ],
)
def test_point_fires_before_its_successor(calls: list[str], earlier: str, later: str) -> None:
    assert calls.index(earlier) < calls.index(later)


def test_sequence_of_one_epoch_is_training_validation_and_save(calls: list[str]) -> None:
    start = calls.index("before_train_epoch")
    assert calls[start : calls.index("before_train_epoch", start + 1)] == [
        "before_train_epoch",
        *["before_train_iter", "after_train_iter"] * 3,
        "after_train_epoch",
        "before_val",
        "before_val_epoch",
        *["before_val_iter", "after_val_iter"] * 2,
        "after_val_epoch",
        "after_val",
        "before_save_checkpoint",
    ]


def test_test_is_a_run_of_its_own(calls: list[str]) -> None:
    start = len(calls) - calls[::-1].index("before_run") - 1
    assert calls[start:] == [
        "before_run",
        "before_test",
        "before_test_epoch",
        "before_test_iter",
        "after_test_iter",
        "after_test_epoch",
        "after_test",
        "after_run",
    ]


def test_functions_are_added_before_and_after_a_body_without_changing_it() -> None:
    bus = HookBus()
    lines: list[str] = []

    def main() -> None:
        with bus.run(iterations=1):
            bus.emit("before_train_iter")
            lines.append("do something here")
            bus.emit("after_train_iter")

    main()
    bus.on("before_train_iter", name="pre")(lambda: lines.append("hello"))
    bus.on("after_train_iter", name="post")(lambda: lines.append("goodbye"))
    main()
    assert lines == ["do something here", "hello", "do something here", "goodbye"]


class TestForwardHooksOfModules:
    def test_hook_registers_forward_hooks_on_every_child(self) -> None:
        records = []

        class ForwardRecorder(Hook):
            def before_train(self, model: nn.Module) -> None:
                for module in model.children():
                    module.register_forward_hook(lambda *arguments: records.append(arguments))

        model = nn.Sequential(nn.Linear(4, 2))
        batches = pairs(1)
        trainer(ForwardRecorder(), model=model, lr=0.0, train_loader=batches, epochs=1).fit()
        ((module, inputs, output),) = records
        assert module is model[0]
        assert torch.equal(inputs[0], batches[0][0])
        assert torch.equal(output, functional.linear(inputs[0], module.weight, module.bias))

    def test_linear_layer_computes_weight_times_input_plus_bias(self) -> None:
        # Values by hand: 0*(-0.5) + 1*0.25 + 2*(-0.25) + 0.125 = -0.125.
        outputs = []

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(3, 1)
                with torch.no_grad():
                    self.fc.weight.copy_(torch.tensor([[-0.5, 0.25, -0.25]]))
                    self.fc.bias.fill_(0.125)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.fc(x)

        class OutputRecorder(Hook):
            def before_val(self, model: nn.Module) -> None:
                for module in model.children():
                    module.register_forward_hook(lambda module, inputs, output: outputs.append(output.tolist()))

        batch = (torch.tensor([[0.0, 1.0, 2.0]]), torch.zeros(1, 1))
        trainer(OutputRecorder(), model=Model(), loss_fn=functional.mse_loss, val_loader=[batch]).validate()
        assert outputs == [[[-0.125]]]


class TestTrainerAndPlainLoop:
    def test_trainer_computes_the_weights_of_the_plain_loop(self) -> None:
        torch.manual_seed(0)
        model, criterion = nn.Linear(4, 2), nn.CrossEntropyLoss()
        start = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        for _ in range(2):
            for inputs, labels in pairs():
                optimizer.zero_grad()
                criterion(model(inputs), labels).backward()
                optimizer.step()
        trained = fingerprint(model.state_dict())

        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        Trainer(
            model,
            optimizer,
            criterion,
            pairs(),
            pairs(2),
            epochs=2,
            work_dir=None,
            default_hooks=False,
            device="cpu",
        ).fit()
        assert fingerprint(model.state_dict()) == trained

    @pytest.mark.parametrize(("stage", "enabled"), [("train", True), ("val", False), ("test", False)])
    def test_gradients_are_recorded_in_training_only(self, stage: str, enabled: bool) -> None:
        modes = set()

        class ModeRecorder(Hook):
            def after_train_iter(self) -> None:
                modes.add(("train", torch.is_grad_enabled()))

            def after_val_iter(self, outputs: Any) -> None:
                modes.add(("val", outputs["loss"].requires_grad))

            def after_test_iter(self, outputs: Any) -> None:
                modes.add(("test", outputs["loss"].requires_grad))

        run = trainer(ModeRecorder(), epochs=1, val_loader=pairs(1), test_loader=pairs(1))
        run.fit()
        run.test()
        assert (stage, enabled) in modes
        assert len(modes) == 3

    def test_test_computes_the_accuracy_of_all_samples(self) -> None:
        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scores = nn.Parameter(torch.tensor([1.0, 0.0]))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.scores.expand(len(x), 2)

        batches = [(torch.zeros(2, 4), torch.tensor([0, 1])), (torch.zeros(2, 4), torch.tensor([0, 0]))]
        results = trainer(model=Constant(), test_loader=batches, metrics=["accuracy"]).test()
        assert results["test/accuracy"] == 0.75

    def test_plain_loop_with_an_explicit_event_at_each_place_calls_hooks_there(self) -> None:
        bus = RecordingBus()
        model = net()
        with bus.run(model=model, epochs=1) as run:
            for name in ("before_train", "before_train_epoch"):
                bus.emit(name)
            for i, batch in run.batches(pairs(2)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs=model(batch[0]))
            bus.emit("after_train_epoch")
            for name in ("before_val", "before_val_epoch", "before_val_iter"):
                bus.emit(name)
            for name in ("after_val_iter", "after_val_epoch", "after_val", "after_train"):
                bus.emit(name)
        assert bus.emitted_points == [
            "before_run",
            "before_train",
            "before_epoch",
            "before_train_epoch",
            *["before_train_iter", "after_train_iter"] * 2,
            "after_train_epoch",
            "before_val",
            "before_val_epoch",
            "before_val_iter",
            "after_val_iter",
            "after_val_epoch",
            "after_val",
            "after_epoch",
            "after_train",
            "after_run",
            "cleanup",
        ]


class TestEffectsOfHooks:
    def test_iteration_events_surround_the_forward_pass(self) -> None:
        order: list[str] = []

        class OrderRecorder(Hook):
            def before_train_iter(self, model: nn.Module) -> None:
                order.append("before")
                model[0].register_forward_hook(lambda *arguments: order.append("forward"))

            def after_train_iter(self) -> None:
                order.append("after")

        trainer(OrderRecorder(), train_loader=pairs(1), epochs=1).fit()
        assert order == ["before", "forward", "after"]

    def test_outputs_of_the_model_are_available_after_an_iteration(self) -> None:
        losses = []

        class LossRecorder(Hook):
            def after_train_iter(self, outputs: Any) -> None:
                losses.append(float(outputs["loss"]))

        model = nn.Linear(4, 2)
        batches = pairs(1)
        expected = functional.cross_entropy(model(batches[0][0]), batches[0][1]).item()
        trainer(LossRecorder(), model=model, train_loader=batches, epochs=1).fit()
        assert losses == [expected]

    def test_weights_are_loaded_at_the_start_of_a_run(self) -> None:
        class LoadWeights(Hook):
            def before_run(self, run: Any) -> None:
                nn.init.ones_(run.model.weight)

        model = nn.Linear(4, 2)
        trainer(LoadWeights(), model=model, lr=0.0, epochs=1).fit()
        assert model.weight.tolist() == [[1.0] * 4] * 2

    def test_parameters_are_updated_after_an_iteration(self) -> None:
        class Decay(Hook):
            def after_train_iter(self, model: nn.Module) -> None:
                with torch.no_grad():
                    model.weight.mul_(0.5)

        model = nn.Linear(4, 2)
        nn.init.ones_(model.weight)
        trainer(Decay(), model=model, lr=0.0, epochs=1).fit()
        assert model.weight.tolist() == [[0.125] * 4] * 2  # halved in each of three iterations

    def test_checkpoint_is_changed_before_it_is_saved_and_after_it_is_loaded(self, tmp_path: Path) -> None:
        loaded = []

        class Note(Hook):
            def before_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                checkpoint["note"] = 7

            def after_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                loaded.append(checkpoint.pop("note"))

        trainer(Note(), Saver("after_epoch"), epochs=1, work_dir=tmp_path / "a").fit()
        path = tmp_path / "a" / "checkpoints" / "iter_3.pth"
        assert torch.load(path, weights_only=True)["note"] == 7
        trainer(Note(), Saver("after_epoch"), epochs=2, work_dir=tmp_path / "b", resume=path).fit()
        assert loaded == [7]

    def test_checkpoint_is_completed_before_the_event_and_written_after_it(self, tmp_path: Path) -> None:
        seen = []

        class Look(Hook):
            def before_save_checkpoint(self, run: Any, checkpoint: dict[str, Any]) -> None:
                seen.append((sorted(checkpoint["state_dict"]), list(run.require("checkpoints_dir").iterdir())))

        trainer(Look(), Saver("after_epoch"), model=nn.Linear(4, 2), epochs=1, work_dir=tmp_path).fit()
        assert seen == [(["bias", "weight"], [])]

    def test_hook_without_methods_of_points_is_registered_and_does_nothing(self) -> None:
        class Idle(Hook):
            pass

        bus = HookBus([Idle()])
        assert list(bus.hooks) == ["idle"]
        assert Idle().get_triggered_stages() == []

    def test_undeclared_point_cannot_be_emitted(self) -> None:
        bus = HookBus()
        with bus.run(iterations=1), pytest.raises(PointError, match="before_train_iter"):
            bus.emit("before_trian_iter")
