from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError

from hookbus.errors import LoopError, MetricError
from hookbus.hook import Hook
from hookbus.loop import Trainer
from hookbus.markers import hookimpl
from hookbus.run import Run
from hookbus.testing import fingerprint
from hookbus.training.evaluation import evaluating
from hookbus.training.rng import get_rng_state
from tests import toys

NO_BATCH = (
    "gave no batch, so nothing was measured. An iterator can be read only once: give a loader with at least one batch "
    "(drop_last may have left none)."
)


class Twice(nn.Module):
    """Twice the input, by a weight; draws a random number from every stream at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1), random.random(), np.random.rand()
        return self.weight * x


def batch(*values: float, targets: tuple[float, ...] | None = None) -> tuple[Tensor, Tensor]:
    wanted = targets or (0.0,) * len(values)
    return torch.tensor(values, dtype=torch.float32), torch.tensor(wanted, dtype=torch.float32)


def trainer(*hooks: object, **options: Any) -> Trainer:
    """A trainer of `Twice` whose loss is the mean absolute difference."""
    model = options.pop("model", None) or Twice()
    given = {"train_loader": [batch(1, 2)], "loss_fn": nn.functional.l1_loss, "epochs": 1}
    return toys.trainer(*hooks, model=model, lr=0.0, **{**given, **options})


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs == targets).float().mean()


class TestTrace:
    """What a validation would leave behind, if it were allowed to."""

    @staticmethod
    def modes(model: nn.Module) -> list[bool]:
        return [module.training for module in model.modules()]

    @staticmethod
    def mixed() -> Twice:
        """Training, but for a part that is frozen, in which one module is not."""
        model = Twice()
        model.frozen.eval()
        model.frozen[1].train()
        return model

    def test_modes_gradients_and_random_streams_come_back(self) -> None:
        model = self.mixed()
        before, streams = self.modes(model), fingerprint(get_rng_state())
        assert before == [True, False, False, True]
        with evaluating(model):
            assert self.modes(model) == [False] * 4
            assert not torch.is_grad_enabled()
            model(torch.ones(1))
            assert fingerprint(get_rng_state()) != streams

        assert self.modes(model) == before
        assert torch.is_grad_enabled()
        assert fingerprint(get_rng_state()) == streams

    def test_they_come_back_when_it_fails(self) -> None:
        model = self.mixed()
        before, streams = self.modes(model), fingerprint(get_rng_state())
        with pytest.raises(ZeroDivisionError), evaluating(model):
            _ = model(torch.ones(1)), 1 / 0

        assert self.modes(model) == before
        assert torch.is_grad_enabled()
        assert fingerprint(get_rng_state()) == streams

    def test_where_gradients_were_off_they_stay_off(self) -> None:
        with torch.no_grad():
            with evaluating(None):
                pass
            assert not torch.is_grad_enabled()

    @pytest.mark.parametrize("fails", [False, True])
    def test_one_in_the_middle_of_an_epoch_leaves_none(self, fails: bool) -> None:
        seen: list[Any] = []

        class Validates(Hook):
            schedules_validation = True

            def after_train_iter(self, run: Run) -> None:
                streams = fingerprint(get_rng_state())
                try:
                    run.validate()
                except ZeroDivisionError:
                    seen.append("failed")
                seen.append((TestTrace.modes(model), torch.is_grad_enabled(), fingerprint(get_rng_state()) == streams))

            def after_val_iter(self) -> None:
                assert not any(TestTrace.modes(model))
                if fails:
                    raise ZeroDivisionError

        model = self.mixed()
        trainer(Validates(), model=model, train_loader=[batch(1)] * 2, val_loader=[batch(1)]).fit()

        once = [*["failed"] * fails, ([True, False, False, True], True, True)]
        assert seen == once * 2

    def test_training_goes_as_it_would_have_gone_without(self) -> None:
        def weights(**options: Any) -> str:
            model = toys.net()
            toys.trainer(model=model, epochs=3, **options).fit()
            return fingerprint([model.state_dict(), get_rng_state()])

        torch.manual_seed(0)
        without = weights()
        torch.manual_seed(0)
        assert weights(val_loader=toys.pairs(2), metrics=["accuracy"], validate_first=True) == without


class TestResults:
    def test_are_means_over_samples_whatever_the_size_of_the_batches(self) -> None:
        loader = [batch(1, 2, targets=(2, 0)), batch(4)]
        results = trainer(val_loader=loader, metrics=[hits]).validate()

        # Absolute differences 0, 4 and 8; one of three is equal.
        assert dict(results) == {"val/loss": 4.0, "val/hits": 1 / 3}

    def test_of_a_test_have_its_name(self) -> None:
        assert dict(trainer(test_loader=[batch(1)]).test()) == {"test/loss": 2.0}

    def test_of_several_loaders_are_told_apart(self) -> None:
        loaders = {"clean": [batch(1, targets=(2,))], "noisy": [batch(1), batch(2, 3)]}
        results = trainer(val_loader=loaders, metrics=[hits]).validate()

        assert dict(results) == {
            "val/clean/loss": 0.0,
            "val/clean/hits": 1.0,
            "val/noisy/loss": 4.0,  # of 2, 4 and 6
            "val/noisy/hits": 0.0,
        }

    def test_a_second_time_are_the_same(self) -> None:
        judging = trainer(val_loader=[batch(1, targets=(2,)), batch(2)], metrics=[hits])
        first = dict(judging.validate())

        assert dict(judging.validate()) == first == {"val/loss": 2.0, "val/hits": 0.5}

    def test_without_a_loss_are_those_of_the_metrics(self) -> None:
        def forward(model: nn.Module, given: Any) -> dict[str, Tensor]:
            return {"logits": model(given["x"])}

        loader = [{"x": torch.ones(2), "labels": torch.tensor([2.0, 3.0])}]
        results = trainer(val_loader=loader, metrics=[hits], step_fn=forward).validate()

        assert dict(results) == {"val/hits": 0.5}

    def test_single_numbers_among_the_outputs_count_as_well(self) -> None:
        def forward(model: nn.Module, given: Any) -> dict[str, Any]:
            return {"loss": model(given).mean(), "largest": given.max(), "all": given}

        results = trainer(val_loader=[torch.ones(3), 5 * torch.ones(1)], step_fn=forward).validate()

        assert dict(results) == {"val/loss": 4.0, "val/largest": 2.0}  # (3 * 2 + 10) / 4, (3 * 1 + 5) / 4

    def test_a_metric_may_find_several(self) -> None:
        class Extremes:
            def reset(self) -> None:
                self.seen: list[Tensor] = []

            def update(self, outputs: Tensor, targets: Tensor) -> None:
                self.seen.append(outputs)

            def compute(self) -> Mapping[str, Tensor]:
                seen = torch.cat(self.seen)
                return {"low": seen.min(), "high": seen.max()}

        results = trainer(val_loader=[batch(1, 5), batch(-3)], metrics=[Extremes()]).validate()

        assert dict(results) == {"val/loss": 6.0, "val/low": -6.0, "val/high": 10.0}

    @pytest.mark.parametrize("several", [lambda collection: collection, lambda collection: [collection]])
    def test_a_collection_of_torchmetrics_is_taken_as_it_is(self, several: Callable[[Any], Any]) -> None:
        collection = MetricCollection([MeanSquaredError(), MeanAbsoluteError()])
        results = trainer(val_loader=[batch(1, 5, -3), batch(-1)], metrics=several(collection)).validate()

        assert dict(results) == {"val/loss": 5.0, "val/MeanSquaredError": 36.0, "val/MeanAbsoluteError": 5.0}

    def test_a_result_that_is_no_single_number_is_an_error_that_names_it(self) -> None:
        class Both:
            def update(self, outputs: Tensor, targets: Tensor) -> None: ...

            def compute(self) -> Tensor:
                return torch.ones(2, 3)

            def reset(self) -> None: ...

        with pytest.raises(MetricError, match=r"The metric 'matrix' gives a Tensor of shape \(2, 3\), and a result is"):
            trainer(val_loader=[batch(1, 5)], metrics={"matrix": Both()}).validate()

    def test_a_score_with_a_device_of_its_own_is_moved_to_that_of_the_model(self) -> None:
        class Keeping:
            """In the manner of torchmetrics: its sum is on a device of its own, where it has to meet the batch."""

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

        score = Keeping()
        judging = trainer(
            val_loader=[batch(1), batch(2)],
            metrics={"score": score},
            device="meta",
            step_fn=lambda model, given: {"output": model(given[0])},
        )
        for _ in range(2):
            assert dict(judging.validate()) == {"val/score": 1}
        assert score.calls == ["to meta", "reset", "compute", "reset"] * 2
        judging.train_loader = [batch(1)]

    def test_a_score_lets_go_of_what_it_kept(self) -> None:
        judging = trainer(val_loader=[batch(1)], metrics=[hits])
        judging.validate()
        assert str(judging.scores["hits"].compute()) == "nan"

    def test_a_step_may_be_replaced_and_wrapped(self) -> None:
        class Replaces:
            @hookimpl
            def val_step(self, batch: Any) -> dict[str, float]:
                return {"loss": 7.0}

        class Adds:
            @hookimpl(wrapper=True)
            def val_step(self) -> Any:
                outputs = yield
                return {"loss": outputs["loss"] + 1}

        assert dict(trainer(Replaces(), Adds(), val_loader=[batch(1)]).validate()) == {"val/loss": 8.0}

    def test_that_are_not_numbers_are_shown_as_they_are(self) -> None:
        results = trainer(val_loader=[batch(1), batch(float("nan"))]).validate()

        assert str(dict(results)) == "{'val/loss': nan}"


class TestEvents:
    def test_name_the_loader_and_count_its_batches(self) -> None:
        told: list[Any] = []

        class Tells(Hook):
            def before_val_epoch(self, dataloader_name: str | None) -> None:
                told.append(("before", dataloader_name))

            def before_val_iter(self, batch_idx: int, batch: Any, dataloader_name: str | None) -> None:
                told.append(("batch", dataloader_name, batch_idx, batch[0].tolist()))

            def after_val_iter(self, batch_idx: int, outputs: Any, loss: Any, dataloader_name: str | None) -> None:
                told.append(("done", dataloader_name, batch_idx, outputs["output"].tolist(), loss.item()))

            def after_val_epoch(self, metrics: Mapping[str, float], dataloader_name: str | None) -> None:
                told.append(("after", dataloader_name, dict(metrics)))

        trainer(Tells(), val_loader={"a": [batch(1), batch(2)], "b": [batch(3)]}).validate()

        assert told == [
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

    def test_batches_are_on_the_device_of_the_model(self) -> None:
        devices: list[str] = []

        class Looks(Hook):
            def before_val_iter(self, batch: Any) -> None:
                devices.append(batch[0].device.type)

            @hookimpl
            def val_step(self, batch: Any) -> dict[str, Any]:
                return {}

        trainer(Looks(), val_loader=[batch(1)], device="meta").validate()

        assert devices == ["meta"]


class TestWhatCannotBeMeasured:
    @pytest.mark.parametrize(
        ("loaders", "message"),
        [
            ([], f"The val_loader {NO_BATCH}"),
            ({"a": [batch(1)], "b": []}, f"The val_loader 'b' {NO_BATCH}"),
            ({}, "The val_loader is an empty mapping, so nothing was measured."),
        ],
        ids=["empty", "one of them empty", "none"],
    )
    def test_a_loader_without_a_batch_is_an_error(self, loaders: Any, message: str) -> None:
        with pytest.raises(LoopError) as raised:
            trainer(val_loader=loaders).validate()

        assert str(raised.value) == message

    def test_an_iterator_that_was_read_to_its_end_is_one_too(self) -> None:
        def batches() -> Iterator[Any]:
            yield batch(1)

        testing = trainer(test_loader=batches())
        testing.test()
        with pytest.raises(LoopError) as raised:
            testing.test()

        assert str(raised.value) == f"The test_loader {NO_BATCH}"

    @pytest.mark.parametrize(
        ("loader", "step_fn"),
        [
            ([torch.ones(2)], None),
            ([{"x": torch.ones(2)}], None),
            ([batch(1)], lambda model, given: {"scores": model(given[0])}),
        ],
        ids=["no target", "no target in a mapping", "no output"],
    )
    def test_metrics_that_lack_something_say_where_they_look(self, loader: Any, step_fn: Any) -> None:
        with pytest.raises(LoopError) as raised:
            trainer(val_loader=loader, step_fn=step_fn, metrics=[hits, "accuracy"]).validate()

        assert str(raised.value) == (
            "The metrics hits, accuracy need the model's output and the targets. Batches are (inputs, targets) or "
            "mappings with 'targets' or 'labels'; a model that returns a mapping names its output 'output' or 'logits'."
        )
