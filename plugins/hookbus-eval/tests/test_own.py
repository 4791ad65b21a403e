"""A validation in the place of the run's."""

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


class Same(nn.Module):
    """Returns its input times its one weight, which is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, batch: Tensor) -> Tensor:
        return batch * self.weight


def largest(outputs: Tensor, targets: Tensor) -> float:
    """A result that no mean over batches gives."""
    return float(outputs.max())


def validate(hook: Hook, *, step: bool = True, **options: Any) -> RecordingBus:
    """One validation in a loop of one's own."""
    bus: Any = RecordingBus([hook])
    if step:
        bus.action("val_step", lambda run, batch: {"output": run.model(batch[0]), "loss": batch[0].mean()})
    with bus.run(model=Same(), **options) as run:
        run.validate()
    return bus  # type: ignore[no-any-return]


def test_a_function_sees_all_outputs_at_once() -> None:
    results = validate(EvalHook(dataloader=BATCHES, metrics=[largest])).current.metrics.results
    assert results == {"val/loss": 3.0, "val/largest": 6.0}


def test_a_function_is_averaged_over_samples_where_nothing_shall_be_kept() -> None:
    hook = EvalHook(dataloader=BATCHES, metrics=[largest], efficient_test=True)
    assert validate(hook).current.metrics.results == {"val/loss": 3.0, "val/largest": (3 * 3.0 + 6.0) / 4}


def test_each_validation_begins_anew() -> None:
    hook, bus = EvalHook(dataloader=BATCHES, metrics={"top": largest}), RecordingBus()
    bus.register(hook)
    bus.action("val_step", lambda run, batch: run.model(batch[0]))
    model = Same()
    with bus.run(model=model) as run:
        assert run.validate()["top"] == 6.0
        nn.init.constant_(model.weight, -1.0)
        assert run.validate()["top"] == -1.0


def test_objects_in_the_manner_of_torchmetrics_are_taken_as_they_are() -> None:
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


def test_several_data_sets_have_a_name_each() -> None:
    hook = EvalHook(dataloader={"a": BATCHES, "b": BATCHES[:1]}, metrics=[largest])
    bus = validate(hook)
    assert dict(bus.current.metrics.results) == {
        "val/a/loss": 3.0,
        "val/a/largest": 6.0,
        "val/b/loss": 2.0,
        "val/b/largest": 3.0,
    }
    assert [each["dataloader_name"] for each in bus.arguments("after_val_epoch")] == ["a", "b"]


def test_the_events_are_those_of_any_validation_once_each() -> None:
    fired = [point for point in validate(EvalHook(dataloader=BATCHES)).fired if "_val" in point]
    iteration = ["before_val_iter", "after_val_iter"]
    assert fired == ["before_val", "before_val_epoch", *iteration, *iteration, "after_val_epoch", "after_val"]


class TestFunctionOfOnesOwn:
    def test_gets_model_and_loader_and_its_results_are_named(self) -> None:
        seen = []

        def judge(model: nn.Module, loader: Any) -> dict[str, float]:
            seen.append((model.training, torch.is_grad_enabled(), loader))
            return {"score": float(len(loader))}

        hook = EvalHook(dataloader={"a": BATCHES, "b": BATCHES[:1]}, test_fn=judge)
        bus = validate(hook, step=False)
        assert bus.current.metrics.results == {"val/a/score": 2.0, "val/b/score": 1.0}
        assert seen == [(False, False, BATCHES), (False, False, BATCHES[:1])]
        epochs = ["before_val_epoch", "after_val_epoch"]
        assert [point for point in bus.fired if "_val" in point] == ["before_val", *epochs, *epochs, "after_val"]

    def test_takes_the_loader_of_the_run(self) -> None:
        hook = EvalHook(test_fn=lambda model, loader: {"batches": len(loader)})
        assert validate(hook, step=False, val_loader=BATCHES).current.metrics.results == {"val/batches": 2.0}

    def test_that_returns_no_results_is_an_error(self) -> None:
        with pytest.raises(HookError, match="hook 'eval': test_fn returned float; wanted is a mapping"):
            validate(EvalHook(dataloader=BATCHES, test_fn=lambda model, loader: 0.5))


def test_it_wins_over_the_validation_of_the_loop() -> None:
    bus = validate(EvalHook(dataloader=BATCHES), validate=lambda: {"loss": 99.0})
    assert bus.current.metrics.results == {"val/loss": 3.0}


def test_a_loop_that_does_not_say_how_a_batch_is_judged_is_told() -> None:
    with pytest.raises(HookError, match=r"hook 'eval' has data .* bus.action\(\"val_step\", step\), or give test_fn"):
        validate(EvalHook(dataloader=BATCHES), step=False)


def test_a_name_that_nobody_provides_is_an_error_with_near_names() -> None:
    with pytest.raises(ServiceError, match="no service 'vall_loader' in this run. Did you mean 'val_loader'"):
        validate(EvalHook(dataloader="vall_loader"), val_loader=BATCHES)


@pytest.mark.parametrize("dataloader", ["vall_loader", {"clean": "val_loader", "noisy": "vall_loader"}])
def test_such_a_name_is_told_before_anything_is_trained(dataloader: Any) -> None:
    bus: Any = RecordingBus([EvalHook(dataloader=dataloader)])
    with pytest.raises(ServiceError, match="no service 'vall_loader'"):
        fake_training(bus=bus, val_loader=BATCHES)
    assert "before_train_iter" not in bus.fired


@pytest.mark.parametrize("empty", [{}, []])
def test_without_data_it_is_an_error(empty: Any) -> None:
    with pytest.raises(LoopError, match="nothing was measured"):
        validate(EvalHook(dataloader=empty))
