"""Tests of the metric store and of evaluation means."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookbus.bus import HookBus
from hookbus.distributed.collectives import Collectives
from hookbus.errors import MetricError
from hookbus.hook import Hook
from hookbus.metrics.logged import EvaluationMeans
from hookbus.metrics.results import Metrics, is_training_metric, resolve_metric_name
from hookbus.metrics.store import MetricStore, is_scalar
from hookbus.trainer.trainer import Trainer

NAMES = ["train/loss", "train/lr", "val/accuracy", "val/loss", "val/top_1"]


class TestNames:
    @pytest.mark.parametrize("name", ["val/accuracy", "val_accuracy", "accuracy"])
    def test_full_name_and_two_short_forms_are_the_same_metric(self, name: str) -> None:
        assert resolve_metric_name(name, NAMES) == "val/accuracy"
        assert Metrics({"val/accuracy": 0.5, "train/loss": 1.0})[name] == 0.5

    @pytest.mark.parametrize(
        ("name", "full_name"), [("val_top_1", "val/top_1"), ("top_1", "val/top_1"), ("lr", "train/lr")]
    )
    def test_name_with_an_underscore_is_resolved(self, name: str, full_name: str) -> None:
        assert resolve_metric_name(name, NAMES) == full_name

    @pytest.mark.parametrize("name", ["val/a/accuracy", "val_a_accuracy", "a/accuracy"])
    def test_name_contains_the_loader_if_there_are_multiple_loaders(self, name: str) -> None:
        assert resolve_metric_name(name, ["val/a/accuracy", "val/b/accuracy"]) == "val/a/accuracy"

    def test_short_name_is_sufficient_if_only_one_loader_has_it(self) -> None:
        assert resolve_metric_name("accuracy", ["val/a/accuracy", "val/b/loss"]) == "val/a/accuracy"

    def test_exact_name_takes_precedence(self) -> None:
        assert resolve_metric_name("val_loss", ["val_loss", "val/loss"]) == "val_loss"
        assert resolve_metric_name("val_loss", ["train/val_loss", "val/loss"]) == "val/loss"

    def test_ambiguous_name_raises_with_the_candidates(self) -> None:
        with pytest.raises(MetricError, match="Ambiguous metric 'loss': train/loss or val/loss. Use the full name"):
            resolve_metric_name("loss", NAMES)

    def test_unknown_name_raises_with_the_available_metrics(self) -> None:
        with pytest.raises(MetricError) as caught:
            resolve_metric_name("mIoU", NAMES)

        assert str(caught.value) == f"Unknown metric 'mIoU'. Available: {', '.join(NAMES)}."

    def test_unknown_name_raises_with_a_similar_name_if_there_is_one(self) -> None:
        with pytest.raises(MetricError, match="Unknown metric 'los'. Did you mean 'loss'. Available: train/loss."):
            resolve_metric_name("los", ["train/loss"])
        with pytest.raises(MetricError, match="Unknown metric 'val/los'. Did you mean 'val/loss'. Available: val/"):
            resolve_metric_name("val/los", ["val/loss"])
        with pytest.raises(MetricError, match="Unknown metric 'loss'. No metrics have been logged yet."):
            resolve_metric_name("loss", [])

    @given(
        st.lists(st.sampled_from(["a", "b/c", "val/x", "val/l/x", "train/x"]), unique=True),
        st.text("abcxl/_", max_size=8),
    )
    def test_full_names_resolve_to_themselves_and_others_to_a_known_name(self, names: list[str], name: str) -> None:
        for full_name in names:
            assert resolve_metric_name(full_name, names) == full_name
        try:
            assert resolve_metric_name(name, names) in names
        except MetricError:
            assert name not in names


class TestMetrics:
    def test_metrics_are_a_read_only_mapping_of_full_names(self) -> None:
        metrics = Metrics({"val/accuracy": 0.5, "val/loss": 1.0})

        assert dict(metrics) == {"val/accuracy": 0.5, "val/loss": 1.0}
        assert metrics == {"val/accuracy": 0.5, "val/loss": 1.0}
        assert len(metrics) == 2
        assert repr(metrics) == "Metrics({'val/accuracy': 0.5, 'val/loss': 1.0})"
        with pytest.raises(TypeError, match="does not support item assignment"):
            metrics["val/accuracy"] = 1.0

    @pytest.mark.parametrize(
        "change",
        [
            lambda metrics: metrics.update(a=1),
            lambda metrics: metrics.setdefault("val/loss", 1),
            lambda metrics: metrics.pop("val/loss"),
            lambda metrics: metrics.popitem(),
            lambda metrics: metrics.clear(),
            lambda metrics: metrics.__delitem__("val/loss"),
        ],
    )
    def test_change_of_the_metrics_states_what_to_do(self, change: Callable[[Any], Any]) -> None:
        metrics = Metrics({"val/loss": 1.0})
        with pytest.raises(TypeError, match=r"Log values by run.log\(name=value\), or modify a copy: dict\(metrics\)"):
            change(metrics)
        assert metrics == {"val/loss": 1.0}

    def test_metrics_are_accepted_where_a_dict_is_required(self) -> None:
        metrics = Metrics({"val/accuracy": 0.5, "val/loss": 1.0}, {"val/loss": 2})
        assert isinstance(metrics, dict)
        assert json.dumps(metrics) == '{"val/accuracy": 0.5, "val/loss": 1.0}'
        assert {**metrics, "a": 1.0} == {"val/accuracy": 0.5, "val/loss": 1.0, "a": 1.0}
        assert type(metrics.copy()) is dict
        assert (metrics.get("accuracy"), metrics.get("acc"), metrics.get("acc", 1.0)) == (0.5, None, 1.0)

    @pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_are_equal_read_only_metrics(self, copy_of: Callable[[Metrics], Metrics]) -> None:
        metrics = Metrics({"val/accuracy": 0.5}, {"val/loss": 2})
        copied = copy_of(metrics)
        assert copied is not metrics
        assert (type(copied), copied, copied.nonfinite) == (Metrics, metrics, {"val/loss": 2})

    def test_merged_metrics_leave_the_first_ones_unchanged(self) -> None:
        metrics = first = Metrics({"val/loss": 1.0})
        metrics |= {"val/loss": 2.0}
        assert (type(metrics), metrics["loss"], first["loss"]) == (Metrics, 2.0, 1.0)

    def test_metrics_are_a_copy_of_the_mapping(self) -> None:
        values = {"val/loss": 1.0}
        metrics = Metrics(values)
        values["val/loss"] = 2.0

        assert metrics["val/loss"] == 1.0

    def test_unambiguous_short_names_are_contained(self) -> None:
        metrics = Metrics({"val/loss": 1.0, "train/loss": 2.0, "val/accuracy": 3.0})

        assert "accuracy" in metrics
        assert "loss" not in metrics
        assert "mIoU" not in metrics
        assert 3 not in metrics
        assert metrics.get("mIoU", 7.0) == 7.0

    def test_zero_counts_are_omitted(self) -> None:
        assert Metrics({}, {"a": 0, "b": 2}).nonfinite == {"b": 2}

    def test_union_merges_counts_and_prefers_the_second_value(self) -> None:
        both = Metrics({"a": 1.0, "b": 1.0}, {"a": 1}) | Metrics({"b": 2.0}, {"b": 3})

        assert dict(both) == {"a": 1.0, "b": 2.0}
        assert both.nonfinite == {"a": 1, "b": 3}


class TestMapping:
    @pytest.fixture
    def store(self) -> MetricStore:
        store = MetricStore()
        store.log({"loss": torch.tensor(0.5), "lr": 1.0})
        store.log({"loss": torch.tensor(0.25)})
        store.results = Metrics({"val/loss": 2.0, "val/accuracy": 0.75})
        return store

    def test_store_is_a_mapping_of_the_latest_values_by_full_name(self, store: MetricStore) -> None:
        expected = {"train/loss": 0.25, "train/lr": 1.0, "val/loss": 2.0, "val/accuracy": 0.75}
        assert isinstance(store, Mapping)
        assert (list(store), len(store), dict(store)) == (list(expected), 4, expected)
        assert (dict(store.items()), list(store.values())) == (expected, list(expected.values()))

    @pytest.mark.parametrize(
        ("name", "value"), [("train/loss", 0.25), ("val_loss", 2.0), ("accuracy", 0.75), ("lr", 1.0)]
    )
    def test_names_are_resolved_as_for_a_monitor(self, store: MetricStore, name: str, value: float) -> None:
        assert (name in store, store[name], store.get(name)) == (True, value, value)

    def test_ambiguous_or_unknown_name_is_a_key_error_with_suggestions(self, store: MetricStore) -> None:
        assert ("loss" in store, "acuracy" in store, store.get("loss"), store.get("acuracy", 3.0)) == (
            False,
            False,
            None,
            3.0,
        )
        with pytest.raises(KeyError, match="Ambiguous metric 'loss': train/loss or val/loss. Use the full name."):
            store["loss"]
        with pytest.raises(KeyError, match="Unknown metric 'acuracy'. Did you mean 'accuracy'?"):
            store["acuracy"]

    def test_loss_of_a_training_without_hooks_is_found(self) -> None:
        store = MetricStore()
        assert (len(store), "loss" in store) == (0, False)
        store.log_outputs({"loss": torch.tensor(0.5)}, None)
        assert (list(store), store["loss"]) == (["train/loss"], 0.5)

    def test_loader_named_like_training_is_distinguished(self) -> None:
        store = MetricStore()
        store.log({"loss": 1.0})
        store.results = Metrics({"val/train/loss": 2.0})
        assert (store["train/loss"], store["val/train/loss"]) == (1.0, 2.0)


class TestLog:
    @pytest.mark.parametrize(
        ("value", "description"),
        [
            (torch.ones(2), "a value of shape (2,)"),
            (np.ones((2, 2)), "a value of shape (2, 2)"),
            (torch.ones(0), "a value of shape (0,)"),
            ("high", "a str"),
            (None, "a NoneType"),
            ([1.0], "a list"),
        ],
    )
    def test_value_that_is_not_a_single_number_raises(self, value: Any, description: str) -> None:
        with pytest.raises(MetricError) as caught:
            MetricStore().log({"score": value})

        assert str(caught.value) == (
            f"Metric 'score': expected a single number, got {description}. Log other data with log_images, "
            "log_histograms or log_text."
        )

    def test_name_with_a_slash_is_unchanged(self) -> None:
        store = MetricStore()
        store.log({"loss": 1.0, "system/cpu": 2.0})

        assert dict(store.latest()) == {"train/loss": 1.0, "system/cpu": 2.0}

    def test_latest_contains_last_values_and_validation_results(self) -> None:
        store = MetricStore()
        for value in (1.0, torch.tensor(2.0)):
            store.log({"loss": value})
            store.row += 1
        store.results = Metrics({"val/accuracy": 0.5})

        assert dict(store.latest()) == {"train/loss": 2.0, "val/accuracy": 0.5}

    def test_values_of_a_validation_are_separate_from_training(self) -> None:
        store, evaluation = MetricStore(), EvaluationMeans()
        store.log({"loss": 1.0})
        store.evaluation = evaluation
        store.log({"loss": 5.0})
        store.evaluation = None

        assert dict(store.latest()) == {"train/loss": 1.0}
        assert evaluation.results(Collectives()) == {"loss": 5.0}


class TestLogOutputs:
    @staticmethod
    def make_watched_store() -> MetricStore:
        store = MetricStore()
        store.window("w")
        return store

    @pytest.mark.parametrize(
        ("outputs", "loss", "expected"),
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
    def test_loss_and_every_number_of_the_outputs_are_logged(self, outputs: Any, loss: Any, expected: Any) -> None:
        store = self.make_watched_store()
        store.log_outputs(outputs, loss)

        assert dict(store.latest()) == expected

    def test_outputs_can_be_a_dict_subclass(self) -> None:
        class ModelOutput(dict[str, Any]):
            pass

        store = self.make_watched_store()
        store.log_outputs(ModelOutput(loss=torch.tensor(1.0)), None)

        assert dict(store.latest()) == {"train/loss": 1.0}

    def test_output_of_a_single_sample_batch_is_not_a_metric(self) -> None:
        store = self.make_watched_store()
        store.log_outputs({"loss": torch.tensor(1.0), "output": torch.ones(1, 1)}, None)

        assert list(store.latest()) == ["train/loss"]

    def test_separate_loss_that_is_not_a_number_is_an_error(self) -> None:
        with pytest.raises(MetricError, match="Metric 'loss': expected a single number, got a value of shape"):
            self.make_watched_store().log_outputs(None, torch.ones(2))

    @pytest.mark.parametrize("loss", [torch.tensor(3.0), 3.0, torch.tensor([3.0])])
    def test_last_loss_is_available_without_a_window(self, loss: Any) -> None:
        store = MetricStore()
        for value in (1.0, loss):
            store.log_outputs({"loss": value, "accuracy": 0.5}, None)
            store.row += 1

        assert dict(store.latest()) == {"train/loss": 3.0}

    def test_invalid_loss_is_ignored_without_a_window(self) -> None:
        store = MetricStore()
        store.log_outputs({"loss": torch.ones(3)}, None)

        assert dict(store.latest()) == {}
        assert store.state_dict()["columns"] == {}

    @pytest.mark.slow
    @pytest.mark.parametrize("watched", [False, True])
    def test_graph_is_released_after_the_iteration(self, watched: bool) -> None:
        store = self.make_watched_store() if watched else MetricStore()
        activation = torch.ones(3, requires_grad=True) * 2
        reference = weakref.ref(activation)
        store.log_outputs({"loss": (activation * activation).sum()}, None)
        del activation
        gc.collect()

        assert reference() is None
        assert store.latest()["train/loss"] == 12.0

    def test_outputs_of_a_validation_belong_to_the_evaluation(self) -> None:
        store, evaluation = self.make_watched_store(), EvaluationMeans()
        store.evaluation = evaluation
        store.log_outputs({"loss": torch.tensor(2.0), "hits": 3}, None)
        store.log_outputs(None, torch.tensor(4.0))
        store.evaluation = None

        assert evaluation.results(Collectives()) == {"loss": 3.0, "hits": 3.0}
        assert dict(store.latest()) == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, True), (1.5, True), (False, True), ("1", False), (None, False), (torch.ones(1), True), (torch.ones(2), False)],
)
def test_is_scalar_accepts_single_numbers(value: Any, expected: bool) -> None:
    assert is_scalar(value) is expected


class TestDeviceSynchronization:
    """No value is copied from the device during an iteration."""

    FETCHES = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")

    @pytest.fixture
    def fetched(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the list of calls that copy a value from the device, by method name."""
        calls: list[str] = []
        for name in self.FETCHES:
            original = getattr(torch.Tensor, name)

            def count(tensor: torch.Tensor, *args: Any, _name: str = name, _call: Any = original, **kwargs: Any) -> Any:
                calls.append(_name)
                return _call(tensor, *args, **kwargs)

            monkeypatch.setattr(torch.Tensor, name, count)
        return calls

    class LoggingHook(Hook):
        """Logs in every iteration, and reads the means at the end of the run."""

        means: dict[str, float]

        def before_run(self, run: Any) -> None:
            self.window = run.metrics.window("watching")

        def after_train_iter(self, run: Any, loss: torch.Tensor) -> None:
            run.log(loss_again=loss, twice=2 * loss)

        def after_run(self, run: Any) -> None:
            self.means = dict(run.metrics.means(self.window))

    def test_trainer_and_logging_do_not_synchronize_with_the_device(self, fetched: list[str]) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        # One epoch, because the history reads its means at the end.
        batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(2 * 64 + 3)]
        hook = self.LoggingHook()
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
        assert "tolist" in fetched, "the means at the end are read with this method"
        assert hook.means["train/loss"] == hook.means["train/loss_again"]
        assert hook.means["train/twice"] == pytest.approx(2 * hook.means["train/loss"], rel=1e-15)

    def test_custom_loop_does_not_synchronize_with_the_device(self, fetched: list[str]) -> None:
        bus = HookBus([self.LoggingHook()])
        weight = torch.zeros((), requires_grad=True)
        with bus.run(iterations=130) as run:
            bus.emit("before_train_epoch")
            for i in range(130):
                loss = (weight - i) ** 2
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_train_iter", batch_idx=i, outputs={"loss": loss}, loss=loss)
            assert fetched == []

        assert run.metrics.latest()["train/loss"] == 129.0**2


def test_loss_that_is_not_reduced_is_logged_as_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    store = MetricStore()
    window = store.window("mean")
    for _ in range(2):
        store.log_outputs({"loss": torch.ones(8), "accuracy": 0.5}, None)
        store.row += 1
    assert store.means(window) == {"train/accuracy": 0.5}
    assert [record.getMessage() for record in caplog.records] == [
        "loss: expected a single number in the outputs, got shape (8,), which is not logged. Pass its mean or sum."
    ]


class TestMeansOverRanks:
    class OtherRank(Collectives):
        """Collectives of two ranks, of which the other one logged given sums."""

        def __init__(self, other: Mapping[str, tuple[float, int, int]]) -> None:
            super().__init__()
            self.other, self.world_size = other, 2

        def _gather(self, name: str, value: Any) -> list[Any]:
            return [value, self.other]

    def test_each_iteration_has_the_same_weight(self) -> None:
        store = MetricStore()
        for loss in (1.0, 2.0):
            store.log({"loss": loss})
            store.row += 1
        means = store.rank_means(store.epoch, self.OtherRank({"train/loss": (9.0, 1, 0), "train/acc": (0.5, 2, 0)}))

        assert dict(means) == {"train/loss": (1 + 2 + 9) / 3, "train/acc": 0.25}
        assert (
            dict(store.means(store.epoch)) == dict(store.rank_means(store.epoch, Collectives())) == {"train/loss": 1.5}
        )

    def test_nonfinite_values_of_all_ranks_are_counted(self) -> None:
        store = MetricStore()
        store.log({"loss": math.inf})
        means = store.rank_means(store.epoch, self.OtherRank({"train/loss": (math.nan, 3, 2)}))

        assert math.isnan(means["loss"])
        assert means.nonfinite == {"train/loss": 3}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("train/loss", True), ("train_loss", True), ("loss", False), ("val/loss", False), ("training_loss", False)],
)
def test_prefix_denotes_a_training_metric(name: str, expected: bool) -> None:
    assert is_training_metric(name) is expected
