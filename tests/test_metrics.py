from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookbus.bus import HookBus
from hookbus.errors import MetricError
from hookbus.hook import Hook
from hookbus.loop import Trainer
from hookbus.metrics import Evaluation, Metrics, MetricStore, is_scalar, resolve
from hookbus.ranks import Ranks

NAMES = ["train/loss", "train/lr", "val/accuracy", "val/loss", "val/top_1"]


class TestNames:
    @pytest.mark.parametrize("written", ["val/accuracy", "val_accuracy", "accuracy"])
    def test_three_spellings_mean_one_metric(self, written: str) -> None:
        assert resolve(written, NAMES) == "val/accuracy"
        assert Metrics({"val/accuracy": 0.5, "train/loss": 1.0})[written] == 0.5

    @pytest.mark.parametrize(
        ("written", "meant"), [("val_top_1", "val/top_1"), ("top_1", "val/top_1"), ("lr", "train/lr")]
    )
    def test_underscores_of_the_name_itself_are_no_obstacle(self, written: str, meant: str) -> None:
        assert resolve(written, NAMES) == meant

    @pytest.mark.parametrize("written", ["val/a/accuracy", "val_a_accuracy", "a/accuracy"])
    def test_with_several_loaders_the_loader_is_part_of_the_name(self, written: str) -> None:
        assert resolve(written, ["val/a/accuracy", "val/b/accuracy"]) == "val/a/accuracy"

    def test_the_bare_name_will_do_where_one_loader_has_it(self) -> None:
        assert resolve("accuracy", ["val/a/accuracy", "val/b/loss"]) == "val/a/accuracy"

    def test_an_exact_name_wins_over_one_that_could_be_meant(self) -> None:
        assert resolve("val_loss", ["val_loss", "val/loss"]) == "val_loss"
        assert resolve("val_loss", ["train/val_loss", "val/loss"]) == "val/loss"

    def test_one_that_can_mean_several_lists_them(self) -> None:
        with pytest.raises(MetricError, match="'loss' can mean train/loss or val/loss: write the full name"):
            resolve("loss", NAMES)

    def test_an_unknown_one_lists_what_there_is(self) -> None:
        with pytest.raises(MetricError) as caught:
            resolve("mIoU", NAMES)

        assert str(caught.value) == f"There is no metric 'mIoU'. Available: {', '.join(NAMES)}."

    def test_an_unknown_one_says_so_where_nothing_is_there_yet(self) -> None:
        with pytest.raises(MetricError, match="There is no metric 'los'. Did you mean 'loss'. Available: train/loss."):
            resolve("los", ["train/loss"])
        with pytest.raises(MetricError, match="There is no metric 'val/los'. Did you mean 'val/loss'. Available: val/"):
            resolve("val/los", ["val/loss"])
        with pytest.raises(MetricError, match="There is no metric 'loss'. There are no metrics yet."):
            resolve("loss", [])

    @given(
        st.lists(st.sampled_from(["a", "b/c", "val/x", "val/l/x", "train/x"]), unique=True),
        st.text("abcxl/_", max_size=8),
    )
    def test_whatever_is_found_is_there_and_every_full_name_finds_itself(self, names: list[str], written: str) -> None:
        for name in names:
            assert resolve(name, names) == name
        try:
            assert resolve(written, names) in names
        except MetricError:
            assert written not in names


class TestMetrics:
    def test_is_a_read_only_mapping_of_full_names(self) -> None:
        metrics = Metrics({"val/accuracy": 0.5, "val/loss": 1.0})

        assert dict(metrics) == {"val/accuracy": 0.5, "val/loss": 1.0}
        assert metrics == {"val/accuracy": 0.5, "val/loss": 1.0}
        assert len(metrics) == 2
        assert repr(metrics) == "Metrics({'val/accuracy': 0.5, 'val/loss': 1.0})"
        with pytest.raises(TypeError, match="does not support item assignment"):
            metrics["val/accuracy"] = 1.0  # type: ignore[index]

    def test_changing_the_mapping_it_was_made_from_changes_nothing(self) -> None:
        given_values = {"val/loss": 1.0}
        metrics = Metrics(given_values)
        given_values["val/loss"] = 2.0

        assert metrics["val/loss"] == 1.0

    def test_holds_what_means_one_thing(self) -> None:
        metrics = Metrics({"val/loss": 1.0, "train/loss": 2.0, "val/accuracy": 3.0})

        assert "accuracy" in metrics
        assert "loss" not in metrics
        assert "mIoU" not in metrics
        assert 3 not in metrics
        assert metrics.get("mIoU", 7.0) == 7.0

    def test_counts_of_zero_are_left_out(self) -> None:
        assert Metrics({}, {"a": 0, "b": 2}).nonfinite == {"b": 2}

    def test_two_together_keep_both_counts_and_the_second_wins(self) -> None:
        both = Metrics({"a": 1.0, "b": 1.0}, {"a": 1}) | Metrics({"b": 2.0}, {"b": 3})

        assert dict(both) == {"a": 1.0, "b": 2.0}
        assert both.nonfinite == {"a": 1, "b": 3}


class TestEvaluation:
    def test_means_are_weighted_by_samples(self) -> None:
        evaluation = Evaluation()
        for size, loss in [(4, 1.0), (4, torch.tensor(3.0)), (1, np.float32(11.0))]:
            evaluation.weight = size
            evaluation.add("loss", loss)

        assert evaluation.results(Ranks()) == {"loss": (4 * 1 + 4 * 3 + 1 * 11) / 9}

    def test_a_weight_of_its_own_wins(self) -> None:
        evaluation = Evaluation()
        evaluation.add("loss", 1.0, weight=3)
        evaluation.add("loss", 5.0, weight=1)

        assert evaluation.results(Ranks()) == {"loss": 2.0}

    def test_each_name_has_the_weight_of_the_batches_that_had_it(self) -> None:
        evaluation = Evaluation()
        evaluation.weight = 2
        evaluation.add("a", 1.0)
        evaluation.weight = 6
        evaluation.add("a", 5.0)
        evaluation.add("b", 7.0)

        assert evaluation.results(Ranks()) == {"a": 4.0, "b": 7.0}

    def test_without_a_sample_the_mean_is_nan(self) -> None:
        evaluation = Evaluation()
        evaluation.add("a", 1.0, weight=0)

        assert math.isnan(evaluation.results(Ranks())["a"])

    def test_numbers_in_whatever_shape_go_together(self) -> None:
        evaluation = Evaluation()
        for value in (
            torch.tensor([1.0]),
            torch.tensor(2.0, dtype=torch.bfloat16),
            torch.tensor([[3]]),
            np.array([2.0]),
        ):
            evaluation.add("a", value)
        evaluation.add("b", True)

        assert evaluation.results(Ranks()) == {"a": 2.0, "b": 1.0}

    def test_a_tensor_that_the_loop_overwrites_counts_as_it_was(self) -> None:
        evaluation = Evaluation()
        value = torch.tensor(1.0, dtype=torch.float64)
        evaluation.add("a", value)
        value.fill_(3.0)
        evaluation.add("a", value)

        assert evaluation.results(Ranks()) == {"a": 2.0}

    def test_no_graph_is_kept(self) -> None:
        evaluation = Evaluation()
        activation = torch.ones(3, requires_grad=True) * 2
        alive = weakref.ref(activation)
        evaluation.add("a", (activation * activation).sum())
        del activation
        gc.collect()

        assert alive() is None
        assert evaluation.results(Ranks()) == {"a": 12.0}


class TestLog:
    @pytest.mark.parametrize(
        ("value", "what"),
        [
            (torch.ones(2), "has shape (2,)"),
            (np.ones((2, 2)), "has shape (2, 2)"),
            (torch.ones(0), "has shape (0,)"),
            ("high", "is str"),
            (None, "is NoneType"),
            ([1.0], "is list"),
        ],
    )
    def test_refuses_what_is_not_a_single_number(self, value: Any, what: str) -> None:
        with pytest.raises(MetricError) as caught:
            MetricStore().log({"score": value})

        assert str(caught.value) == (
            f"The metric 'score' {what}; run.log takes single numbers. Record other things with log_images, "
            "log_histograms or log_text."
        )

    def test_a_name_with_a_slash_is_left_as_it_is(self) -> None:
        store = MetricStore()
        store.log({"loss": 1.0, "system/cpu": 2.0})

        assert dict(store.latest()) == {"train/loss": 1.0, "system/cpu": 2.0}

    def test_latest_shows_the_newest_values_and_the_results_of_validations(self) -> None:
        store = MetricStore()
        for value in (1.0, torch.tensor(2.0)):
            store.log({"loss": value})
            store.row += 1
        store.results = Metrics({"val/accuracy": 0.5})

        assert dict(store.latest()) == {"train/loss": 2.0, "val/accuracy": 0.5}

    def test_a_validation_has_its_values_to_itself(self) -> None:
        store, evaluation = MetricStore(), Evaluation()
        store.log({"loss": 1.0})
        store.evaluate(evaluation)
        store.log({"loss": 5.0})
        store.evaluate(None)

        assert dict(store.latest()) == {"train/loss": 1.0}
        assert evaluation.results(Ranks()) == {"loss": 5.0}


class TestNote:
    @staticmethod
    def watched() -> MetricStore:
        store = MetricStore()
        store.window("w")
        return store

    @pytest.mark.parametrize(
        ("outputs", "loss", "noted"),
        [
            ({"loss": torch.tensor(1.0), "accuracy": 0.5}, None, {"train/loss": 1.0, "train/accuracy": 0.5}),
            ({"accuracy": 0.5}, torch.tensor(1.0), {"train/loss": 1.0, "train/accuracy": 0.5}),
            ({"loss": 2.0}, 1.0, {"train/loss": 1.0}),
            (torch.tensor(1.0), None, {"train/loss": 1.0}),
            (1.5, None, {"train/loss": 1.5}),
            (torch.ones(4, 2), torch.tensor(1.0), {"train/loss": 1.0}),
            (None, 1.0, {"train/loss": 1.0}),
            (None, None, {}),
            ({"loss": torch.tensor([3.0])}, None, {"train/loss": 3.0}),
            ({"loss": torch.ones(3), "output": torch.ones(4, 2), "text": "a", 3: 1.0}, None, {}),
        ],
    )
    def test_takes_the_loss_and_every_number_among_the_outputs(self, outputs: Any, loss: Any, noted: Any) -> None:
        store = self.watched()
        store.note(outputs, loss)

        assert dict(store.latest()) == noted

    def test_outputs_may_be_any_kind_of_dict(self) -> None:
        class ModelOutput(dict[str, Any]):
            pass

        store = self.watched()
        store.note(ModelOutput(loss=torch.tensor(1.0)), None)

        assert dict(store.latest()) == {"train/loss": 1.0}

    def test_an_output_is_no_metric_because_the_last_batch_has_one_sample(self) -> None:
        store = self.watched()
        store.note({"loss": torch.tensor(1.0), "output": torch.ones(1, 1)}, None)

        assert list(store.latest()) == ["train/loss"]

    def test_a_loss_given_apart_that_is_no_number_is_an_error(self) -> None:
        with pytest.raises(MetricError, match="'loss' has shape"):
            self.watched().note(None, torch.ones(2))

    @pytest.mark.parametrize("loss", [torch.tensor(3.0), 3.0, torch.tensor([3.0])])
    def test_where_nobody_watches_the_last_loss_is_known_all_the_same(self, loss: Any) -> None:
        store = MetricStore()
        for value in (1.0, loss):
            store.note({"loss": value, "accuracy": 0.5}, None)
            store.row += 1

        assert dict(store.latest()) == {"train/loss": 3.0}

    def test_where_nobody_watches_an_odd_loss_does_no_harm(self) -> None:
        store = MetricStore()
        store.note({"loss": torch.ones(3)}, None)

        assert dict(store.latest()) == {}
        assert store.state_dict()["columns"] == {}

    @pytest.mark.parametrize("watched", [False, True])
    def test_no_graph_outlives_its_iteration(self, watched: bool) -> None:
        store = self.watched() if watched else MetricStore()
        activation = torch.ones(3, requires_grad=True) * 2
        alive = weakref.ref(activation)
        store.note({"loss": (activation * activation).sum()}, None)
        del activation
        gc.collect()

        assert alive() is None
        assert store.latest()["train/loss"] == 12.0

    def test_in_a_validation_the_numbers_belong_to_it(self) -> None:
        store, evaluation = self.watched(), Evaluation()
        store.evaluate(evaluation)
        store.note({"loss": torch.tensor(2.0), "hits": 3}, None)
        store.note(None, torch.tensor(4.0))
        store.evaluate(None)

        assert evaluation.results(Ranks()) == {"loss": 3.0, "hits": 3.0}
        assert dict(store.latest()) == {}


@pytest.mark.parametrize(
    ("value", "single"),
    [(1, True), (1.5, True), (False, True), ("1", False), (None, False), (torch.ones(1), True), (torch.ones(2), False)],
)
def test_a_single_number_is_recognised(value: Any, single: bool) -> None:
    assert is_scalar(value) is single


class TestWaitingForTheDevice:
    """No value is fetched from the device on the path of an iteration."""

    FETCHES = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")

    @pytest.fixture
    def fetched(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The names of what fetches a value, each time it was called."""
        calls: list[str] = []
        for name in self.FETCHES:
            original = getattr(torch.Tensor, name)

            def count(tensor: torch.Tensor, *args: Any, _name: str = name, _call: Any = original, **kwargs: Any) -> Any:
                calls.append(_name)
                return _call(tensor, *args, **kwargs)

            monkeypatch.setattr(torch.Tensor, name, count)
        return calls

    class Watching(Hook):
        """Logs at every iteration, and reads at the end of the run only."""

        seen: dict[str, float]

        def before_run(self, run: Any) -> None:
            self.window = run.metrics.window("watching")

        def after_train_iter(self, run: Any, loss: torch.Tensor) -> None:
            run.log(loss_again=loss, twice=2 * loss)

        def after_run(self, run: Any) -> None:
            self.seen = dict(run.metrics.means(self.window))

    def test_neither_by_the_trainer_nor_by_logging(self, fetched: list[str]) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
        hook = self.Watching()
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            nn.functional.cross_entropy,
            batches,
            iterations=2 * 64 + 2,
            work_dir=None,
            hooks=[hook],
            default_hooks=False,
            device="cpu",
            clip_grad_norm=1.0,
        )
        counts: list[int] = []
        trainer.bus.on("after_train_iter", priority=-1)(lambda: counts.append(len(fetched)))
        trainer.fit()

        assert counts == [0] * 130
        assert "tolist" in fetched, "the means at the end are read by this"
        assert hook.seen["train/loss"] == hook.seen["train/loss_again"]
        assert hook.seen["train/twice"] == pytest.approx(2 * hook.seen["train/loss"], rel=1e-15)

    def test_nor_by_a_loop_of_ones_own(self, fetched: list[str]) -> None:
        bus = HookBus([self.Watching()])
        weight = torch.zeros((), requires_grad=True)
        with bus.run(iterations=130) as run:
            bus.emit("before_train_epoch")
            for i in range(130):
                loss = (weight - i) ** 2
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_train_iter", batch_idx=i, outputs={"loss": loss}, loss=loss)
            assert fetched == []

        assert run.metrics.latest()["train/loss"] == 129.0**2
