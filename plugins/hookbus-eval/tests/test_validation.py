"""Validation that replaces the one of the run: data, metrics, `test_fn`, and errors."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus import Hook
from hookbus.errors import HookError, LoopError, ServiceError
from hookbus.testing import RecordingBus, fake_training
from hookbus_eval import EvalHook

BATCHES = [
    (torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0])),
    (torch.tensor([[6.0]]), torch.tensor([1])),
]


class Scale(nn.Module):
    """Model that multiplies its input by one weight, initially 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, batch: Tensor) -> Tensor:
        return batch * self.weight


def largest(outputs: Tensor, targets: Tensor) -> float:
    """Return the maximum of the outputs, which differs from the mean over batches."""
    return float(outputs.max())


def validate(hook: Hook, *, step: bool = True, **options: Any) -> RecordingBus:
    """Run one validation in a custom loop."""
    bus: Any = RecordingBus([hook])
    if step:
        bus.action("val_step", lambda run, batch: {"output": run.model(batch[0]), "loss": batch[0].mean()})
    with bus.run(model=Scale(), **options) as run:
        run.validate()
    return bus  # type: ignore[no-any-return]


def test_function_is_called_once_with_all_outputs() -> None:
    results = validate(EvalHook(dataloader=BATCHES, metrics=[largest])).current.metrics.results
    assert results == {"val/loss": 3.0, "val/largest": 6.0}


def test_function_is_averaged_over_samples_with_efficient_test() -> None:
    hook = EvalHook(dataloader=BATCHES, metrics=[largest], efficient_test=True)
    assert validate(hook).current.metrics.results == {"val/loss": 3.0, "val/largest": (3 * 3.0 + 6.0) / 4}


def test_metrics_are_reset_before_each_validation() -> None:
    hook, bus = EvalHook(dataloader=BATCHES, metrics={"top": largest}), RecordingBus()
    bus.register(hook)
    bus.action("val_step", lambda run, batch: run.model(batch[0]))
    model = Scale()
    with bus.run(model=model) as run:
        assert run.validate()["top"] == 6.0
        nn.init.constant_(model.weight, -1.0)
        assert run.validate()["top"] == -1.0


def test_metric_may_be_an_object_with_the_torchmetrics_interface() -> None:
    class Count:
        def __init__(self) -> None:
            self.count = 0

        def update(self, outputs: Tensor, targets: Tensor) -> None:
            self.count += len(targets)

        def compute(self) -> Tensor:
            return torch.tensor(self.count)

        def reset(self) -> None:
            self.count = 0

    assert validate(EvalHook(dataloader=BATCHES, metrics=[Count()])).current.metrics.results["count"] == 4


def test_results_of_multiple_datasets_have_the_name_of_the_dataset() -> None:
    hook = EvalHook(dataloader={"a": BATCHES, "b": BATCHES[:1]}, metrics=[largest])
    bus = validate(hook)
    assert dict(bus.current.metrics.results) == {
        "val/a/loss": 3.0,
        "val/a/largest": 6.0,
        "val/b/loss": 2.0,
        "val/b/largest": 3.0,
    }
    assert [arguments["dataloader_name"] for arguments in bus.get_arguments("after_val_epoch")] == ["a", "b"]


def test_validation_emits_each_event_once() -> None:
    fired = [point for point in validate(EvalHook(dataloader=BATCHES)).emitted_points if "_val" in point]
    iteration = ["before_val_iter", "after_val_iter"]
    assert fired == ["before_val", "before_val_epoch", *iteration, *iteration, "after_val_epoch", "after_val"]


class TestTestFn:
    def test_test_fn_receives_model_and_loader_and_its_results_are_named(self) -> None:
        calls = []

        def evaluate(model: nn.Module, loader: Any) -> dict[str, float]:
            calls.append((model.training, torch.is_grad_enabled(), loader))
            return {"score": float(len(loader))}

        hook = EvalHook(dataloader={"a": BATCHES, "b": BATCHES[:1]}, test_fn=evaluate)
        bus = validate(hook, step=False)
        assert bus.current.metrics.results == {"val/a/score": 2.0, "val/b/score": 1.0}
        assert calls == [(False, False, BATCHES), (False, False, BATCHES[:1])]
        epochs = ["before_val_epoch", "after_val_epoch"]
        assert [point for point in bus.emitted_points if "_val" in point] == [
            "before_val",
            *epochs,
            *epochs,
            "after_val",
        ]

    def test_test_fn_receives_the_loader_of_the_run(self) -> None:
        hook = EvalHook(test_fn=lambda model, loader: {"batches": len(loader)})
        assert validate(hook, step=False, val_loader=BATCHES).current.metrics.results == {"val/batches": 2.0}

    def test_hook_raises_if_test_fn_returns_no_mapping(self) -> None:
        with pytest.raises(HookError, match="hook 'eval': test_fn must return a mapping of name to number, got float"):
            validate(EvalHook(dataloader=BATCHES, test_fn=lambda model, loader: 0.5))


def test_hook_replaces_the_validation_of_the_loop() -> None:
    bus = validate(EvalHook(dataloader=BATCHES), validate=lambda: {"loss": 99.0})
    assert bus.current.metrics.results == {"val/loss": 3.0}


def test_hook_raises_if_the_loop_has_no_val_step() -> None:
    with pytest.raises(
        HookError, match=r"hook 'eval': no `val_step` .*bus.action\(\"val_step\", step\)`, or set `test_fn`"
    ):
        validate(EvalHook(dataloader=BATCHES), step=False)


def test_unknown_loader_name_is_an_error_with_similar_names() -> None:
    with pytest.raises(ServiceError, match="no service 'vall_loader'.* Did you mean 'val_loader'"):
        validate(EvalHook(dataloader="vall_loader"), val_loader=BATCHES)


@pytest.mark.parametrize("dataloader", ["vall_loader", {"clean": "val_loader", "noisy": "vall_loader"}])
def test_unknown_loader_name_is_reported_before_training(dataloader: Any) -> None:
    bus: Any = RecordingBus([EvalHook(dataloader=dataloader)])
    with pytest.raises(ServiceError, match="no service 'vall_loader'"):
        fake_training(bus=bus, val_loader=BATCHES)
    assert "before_train_iter" not in bus.emitted_points


@pytest.mark.parametrize("empty", [{}, []])
def test_validation_without_data_is_an_error(empty: Any) -> None:
    with pytest.raises(LoopError, match="val_loader: expected at least one"):
        validate(EvalHook(dataloader=empty))
