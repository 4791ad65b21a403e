from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError

from hookbus._events.markers import hookimpl
from hookbus._run.run import Run
from hookbus._training.evaluation import eval_mode
from hookbus.data.rng import get_rng_state
from hookbus.errors import LoopError, MetricError
from hookbus.hook import Hook
from hookbus.testing import fingerprint
from hookbus.trainer.trainer import Trainer
from tests import toys

NO_BATCH = (
    "expected at least one batch, got none. Pass a loader that yields batches in every epoch: an iterator can be read "
    "only once, and drop_last may drop the only batch."
)


class Twice(nn.Module):
    """Multiplies the input by a weight of 2; draws a random number from every global RNG at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1), random.random(), np.random.rand()
        return self.weight * x


def batch(*values: float, targets: tuple[float, ...] | None = None) -> tuple[Tensor, Tensor]:
    target_values = targets or (0.0,) * len(values)
    return torch.tensor(values, dtype=torch.float32), torch.tensor(target_values, dtype=torch.float32)


def trainer(*hooks: object, **options: Any) -> Trainer:
    """Return a trainer of `Twice` with the mean absolute difference as loss."""
    model = options.pop("model", None) or Twice()
    defaults = {"train_loader": [batch(1, 2)], "loss_fn": nn.functional.l1_loss, "epochs": 1}
    return toys.trainer(*hooks, model=model, lr=0.0, **{**defaults, **options})


def pack(samples: list[tuple[Tensor]]) -> dict[str, Any]:
    """Return the samples as one row."""
    return {"x": torch.stack([x for (x,) in samples])[None], "target": [0] * len(samples)}


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs == targets).float().mean()


class TestSideEffects:
    """Validation does not change module modes, gradient mode and RNG states."""

    @staticmethod
    def modes(model: nn.Module) -> list[bool]:
        return [module.training for module in model.modules()]

    @staticmethod
    def make_mixed_modes() -> Twice:
        """Return a model in training mode with a frozen submodule, in which one module is in training mode."""
        model = Twice()
        model.frozen.eval()
        model.frozen[1].train()
        return model

    def test_eval_mode_restores_modes_gradients_and_rng_states(self) -> None:
        model = self.make_mixed_modes()
        before, rng = self.modes(model), fingerprint(get_rng_state())
        assert before == [True, False, False, True]
        with eval_mode(model):
            assert self.modes(model) == [False] * 4
            assert not torch.is_grad_enabled()
            model(torch.ones(1))
            assert fingerprint(get_rng_state()) != rng

        assert self.modes(model) == before
        assert torch.is_grad_enabled()
        assert fingerprint(get_rng_state()) == rng

    def test_eval_mode_restores_all_states_after_an_error(self) -> None:
        model = self.make_mixed_modes()
        before, rng = self.modes(model), fingerprint(get_rng_state())
        with pytest.raises(ZeroDivisionError), eval_mode(model):
            _ = model(torch.ones(1)), 1 / 0

        assert self.modes(model) == before
        assert torch.is_grad_enabled()
        assert fingerprint(get_rng_state()) == rng

    def test_eval_mode_keeps_gradients_disabled(self) -> None:
        with torch.no_grad():
            with eval_mode(None):
                pass
            assert not torch.is_grad_enabled()

    @pytest.mark.parametrize("fails", [False, True])
    def test_validation_within_an_epoch_has_no_side_effects(self, fails: bool) -> None:
        results: list[Any] = []

        class ValidatingHook(Hook):
            schedules_validation = True

            def after_train_iter(self, run: Run) -> None:
                rng = fingerprint(get_rng_state())
                try:
                    run.validate()
                except ZeroDivisionError:
                    results.append("failed")
                results.append(
                    (TestSideEffects.modes(model), torch.is_grad_enabled(), fingerprint(get_rng_state()) == rng)
                )

            def after_val_iter(self) -> None:
                assert not any(TestSideEffects.modes(model))
                if fails:
                    raise ZeroDivisionError

        model = self.make_mixed_modes()
        trainer(ValidatingHook(), model=model, train_loader=[batch(1)] * 2, val_loader=[batch(1)]).fit()

        expected = [*["failed"] * fails, ([True, False, False, True], True, True)]
        assert results == expected * 2

    def test_validation_does_not_change_the_training(self) -> None:
        def weights(**options: Any) -> str:
            model = toys.net()
            toys.trainer(model=model, epochs=3, **options).fit()
            return fingerprint([model.state_dict(), get_rng_state()])

        torch.manual_seed(0)
        without = weights()
        torch.manual_seed(0)
        assert weights(val_loader=toys.pairs(2), metrics=["accuracy"], validate_first=True) == without


class TestResults:
    def test_results_are_means_over_samples_for_any_batch_size(self) -> None:
        loader = [batch(1, 2, targets=(2, 0)), batch(4)]
        results = trainer(val_loader=loader, metrics=[hits]).validate()

        # Absolute differences 0, 4 and 8; one of three is equal.
        assert dict(results) == {"val/loss": 4.0, "val/hits": 1 / 3}

    @pytest.mark.parametrize("declared", [False, True])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_results_are_means_over_samples_for_any_form_of_batch(self, declared: bool, workers: int) -> None:
        values = TensorDataset(torch.tensor([0.0, 0.0, 0.0, 0.0, 10.0]))
        loader = DataLoader(
            values, batch_sampler=[[0, 1], [4], [2, 3]], collate_fn=pack, num_workers=workers, in_order=not declared
        )
        results = trainer(
            val_loader=loader,
            metrics={"mean": lambda outputs, targets: outputs.mean()},
            batch_size=(lambda batch: len(batch["target"])) if declared else None,
            step_fn=lambda model, batch: {"loss": batch["x"].mean(), "output": batch["x"]},
        ).validate()

        assert dict(results) == {"val/loss": 2.0, "val/mean": 2.0}  # (2 * 0 + 1 * 10 + 2 * 0) / 5

    def test_results_of_a_test_have_the_prefix_test(self) -> None:
        assert dict(trainer(test_loader=[batch(1)]).test()) == {"test/loss": 2.0}

    def test_results_of_multiple_loaders_contain_the_loader_name(self) -> None:
        loaders = {"clean": [batch(1, targets=(2,))], "noisy": [batch(1), batch(2, 3)]}
        results = trainer(val_loader=loaders, metrics=[hits]).validate()

        assert dict(results) == {
            "val/clean/loss": 0.0,
            "val/clean/hits": 1.0,
            "val/noisy/loss": 4.0,  # of 2, 4 and 6
            "val/noisy/hits": 0.0,
        }

    def test_second_validation_has_the_same_results(self) -> None:
        evaluator = trainer(val_loader=[batch(1, targets=(2,)), batch(2)], metrics=[hits])
        first = dict(evaluator.validate())

        assert dict(evaluator.validate()) == first == {"val/loss": 2.0, "val/hits": 0.5}

    def test_results_without_a_loss_are_those_of_the_metrics(self) -> None:
        def forward(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
            return {"logits": model(inputs["x"])}

        loader = [{"x": torch.ones(2), "labels": torch.tensor([2.0, 3.0])}]
        results = trainer(val_loader=loader, metrics=[hits], step_fn=forward).validate()

        assert dict(results) == {"val/hits": 0.5}

    def test_scalar_outputs_are_averaged_as_well(self) -> None:
        def forward(model: nn.Module, inputs: Any) -> dict[str, Any]:
            return {"loss": model(inputs).mean(), "largest": inputs.max(), "all": inputs}

        results = trainer(val_loader=[torch.ones(3), 5 * torch.ones(1)], step_fn=forward).validate()

        assert dict(results) == {"val/loss": 4.0, "val/largest": 2.0}  # (3 * 2 + 10) / 4, (3 * 1 + 5) / 4

    def test_metric_may_return_multiple_results(self) -> None:
        class Extremes:
            def reset(self) -> None:
                self.outputs: list[Tensor] = []

            def update(self, outputs: Tensor, targets: Tensor) -> None:
                self.outputs.append(outputs)

            def compute(self) -> Mapping[str, Tensor]:
                values = torch.cat(self.outputs)
                return {"low": values.min(), "high": values.max()}

        results = trainer(val_loader=[batch(1, 5), batch(-3)], metrics=[Extremes()]).validate()

        assert dict(results) == {"val/loss": 6.0, "val/low": -6.0, "val/high": 10.0}

    @pytest.mark.parametrize("wrap", [lambda collection: collection, lambda collection: [collection]])
    def test_torchmetrics_collection_is_supported(self, wrap: Callable[[Any], Any]) -> None:
        collection = MetricCollection([MeanSquaredError(), MeanAbsoluteError()])
        results = trainer(val_loader=[batch(1, 5, -3), batch(-1)], metrics=wrap(collection)).validate()

        assert dict(results) == {"val/loss": 5.0, "val/MeanSquaredError": 36.0, "val/MeanAbsoluteError": 5.0}

    def test_result_that_is_not_a_scalar_is_an_error(self) -> None:
        class Both:
            def update(self, outputs: Tensor, targets: Tensor) -> None: ...

            def compute(self) -> Tensor:
                return torch.ones(2, 3)

            def reset(self) -> None: ...

        with pytest.raises(
            MetricError, match=r"metric 'matrix': expected a single number, got Tensor of shape \(2, 3\)"
        ):
            trainer(val_loader=[batch(1, 5)], metrics={"matrix": Both()}).validate()

    def test_metric_is_moved_to_the_device_of_the_model(self) -> None:
        class DeviceSum:
            """Metric that stores its state on a device, as torchmetrics does."""

            def __init__(self) -> None:
                self.sum = torch.zeros(())
                self.calls: list[str] = []

            def to(self, device: torch.device) -> None:
                self.sum = self.sum.to(device)
                self.calls.append(f"to {device}")

            def reset(self) -> None:
                self.sum = torch.zeros_like(self.sum)
                self.calls.append("reset")

            def update(self, outputs: Tensor, targets: Tensor) -> None:
                assert self.sum.device == outputs.device == targets.device
                self.sum = self.sum + outputs.sum()

            def compute(self) -> int:
                self.calls.append("compute")
                return 1

        metric = DeviceSum()
        evaluator = trainer(
            val_loader=[batch(1), batch(2)],
            metrics={"score": metric},
            device="meta",
            step_fn=lambda model, inputs: {"output": model(inputs[0])},
        )
        for _ in range(2):
            assert dict(evaluator.validate()) == {"val/score": 1}
        assert metric.calls == ["to meta", "reset", "compute", "reset"] * 2
        evaluator.train_loader = [batch(1)]

    def test_metrics_are_reset_after_a_validation(self) -> None:
        evaluator = trainer(val_loader=[batch(1)], metrics=[hits])
        evaluator.validate()
        assert str(evaluator.eval_metrics["hits"].compute()) == "nan"

    def test_hooks_can_replace_and_wrap_the_step(self) -> None:
        class ReplacingHook:
            @hookimpl
            def val_step(self, batch: Any) -> dict[str, float]:
                return {"loss": 7.0}

        class AddingHook:
            @hookimpl(wrapper=True)
            def val_step(self) -> Any:
                outputs = yield
                return {"loss": outputs["loss"] + 1}

        assert dict(trainer(ReplacingHook(), AddingHook(), val_loader=[batch(1)]).validate()) == {"val/loss": 8.0}

    def test_nan_results_are_reported(self) -> None:
        results = trainer(val_loader=[batch(1), batch(float("nan"))]).validate()

        assert str(dict(results)) == "{'val/loss': nan}"


class TestEvents:
    def test_events_contain_the_loader_name_and_the_batch_index(self) -> None:
        events: list[Any] = []

        class RecordingHook(Hook):
            def before_val_epoch(self, dataloader_name: str | None) -> None:
                events.append(("before", dataloader_name))

            def before_val_iter(self, batch_idx: int, batch: Any, dataloader_name: str | None) -> None:
                events.append(("batch", dataloader_name, batch_idx, batch[0].tolist()))

            def after_val_iter(self, batch_idx: int, outputs: Any, loss: Any, dataloader_name: str | None) -> None:
                events.append(("done", dataloader_name, batch_idx, outputs["output"].tolist(), loss.item()))

            def after_val_epoch(self, metrics: Mapping[str, float], dataloader_name: str | None) -> None:
                events.append(("after", dataloader_name, dict(metrics)))

        trainer(RecordingHook(), val_loader={"a": [batch(1), batch(2)], "b": [batch(3)]}).validate()

        assert events == [
            ("before", "a"),
            ("batch", "a", 0, [1.0]),
            ("done", "a", 0, [2.0], 2.0),
            ("batch", "a", 1, [2.0]),
            ("done", "a", 1, [4.0], 4.0),
            ("after", "a", {"val/a/loss": 3.0}),
            ("before", "b"),
            ("batch", "b", 0, [3.0]),
            ("done", "b", 0, [6.0], 6.0),
            ("after", "b", {"val/b/loss": 6.0}),
        ]

    def test_batches_are_moved_to_the_device_of_the_model(self) -> None:
        devices: list[str] = []

        class DeviceHook(Hook):
            def before_val_iter(self, batch: Any) -> None:
                devices.append(batch[0].device.type)

            @hookimpl
            def val_step(self, batch: Any) -> dict[str, Any]:
                return {}

        trainer(DeviceHook(), val_loader=[batch(1)], device="meta").validate()

        assert devices == ["meta"]


class TestErrors:
    @pytest.mark.parametrize(
        ("loaders", "message"),
        [
            ([], f"val_loader: {NO_BATCH}"),
            ({"a": [batch(1)], "b": []}, f"val_loader 'b': {NO_BATCH}"),
            (
                {},
                "val_loader: expected at least one loader, got an empty mapping. Pass a loader or a mapping of name to "
                "loader.",
            ),
        ],
        ids=["empty", "one of them empty", "none"],
    )
    def test_loader_without_batches_is_an_error(self, loaders: Any, message: str) -> None:
        with pytest.raises(LoopError) as raised:
            trainer(val_loader=loaders).validate()

        assert str(raised.value) == message

    def test_exhausted_iterator_is_an_error(self) -> None:
        def batches() -> Iterator[Any]:
            yield batch(1)

        evaluator = trainer(test_loader=batches())
        evaluator.test()
        with pytest.raises(LoopError) as raised:
            evaluator.test()

        assert str(raised.value) == f"test_loader: {NO_BATCH}"

    @pytest.mark.parametrize(
        ("loader", "step_fn", "missing"),
        [
            ([torch.ones(2)], None, "targets are"),
            ([{"x": torch.ones(2)}], None, "targets are"),
            ([batch(1)], lambda model, inputs: {"scores": model(inputs[0])}, "output of the model is"),
        ],
        ids=["no target", "no target in a mapping", "no output"],
    )
    def test_missing_output_or_targets_is_an_error(self, loader: Any, step_fn: Any, missing: str) -> None:
        with pytest.raises(LoopError) as raised:
            trainer(val_loader=loader, step_fn=step_fn, metrics=[hits, "accuracy"]).validate()

        assert str(raised.value) == (
            f"metrics hits, accuracy: the {missing} missing. Use batches of the form (inputs, targets) or mappings "
            "with 'targets' or 'labels', and models that return the output itself or a mapping with 'output' or "
            "'logits'."
        )
