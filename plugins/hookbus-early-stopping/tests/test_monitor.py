"""Monitored metric: its name, its absence, and its state."""

import warnings

import pytest

from hookbus import Metrics
from hookbus.errors import HookWarning, MetricError
from hookbus_early_stopping.monitor import Monitor
from hookbus_early_stopping.stopping_rule import Mode

RESULTS = Metrics({"val/a/loss": 0.5, "val/b/loss": 0.25, "val/accuracy": 0.75})


@pytest.mark.parametrize(("metric", "score"), [("val_a_loss", 0.5), ("b/loss", 0.25), ("accuracy", 0.75)])
def test_monitor_finds_the_metric_by_any_unambiguous_name(metric: str, score: float) -> None:
    assert Monitor(metric, "max", strict=True).get_score(RESULTS) == score


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("loss", "'loss'.* val/a/loss or val/b/loss"),
        ("f1", "'f1'.* val/a/loss, val/accuracy, val/b/loss"),
    ],
)
def test_strict_monitor_raises_if_the_metric_is_missing_or_ambiguous(metric: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        Monitor(metric, "max", strict=True).get_score(RESULTS)


def test_monitor_warns_once_about_a_missing_metric() -> None:
    monitor = Monitor("f1", "max", strict=False)
    with pytest.warns(HookWarning, match=r"metric is missing\. .*'f1'.* Set `monitor`\."):
        assert monitor.get_score(RESULTS) is None
    with warnings.catch_warnings(action="error"):
        assert monitor.get_score(RESULTS) is None
    assert monitor.full_name is None


def test_metric_is_not_missing_once_a_validation_provides_it() -> None:
    monitor = Monitor("f1", "max", strict=False)
    with pytest.warns(HookWarning):
        monitor.get_score(RESULTS)
    assert monitor.get_score(Metrics({"val/f1": 0.5})) == 0.5
    assert monitor.full_name == "val/f1"


def test_monitor_does_not_repeat_the_warning_after_a_resume() -> None:
    first, second = Monitor("f1", "max", strict=False), Monitor("f1", "max", strict=False)
    with pytest.warns(HookWarning):
        first.get_score(RESULTS)
    second.load_state_dict(first.state_dict())
    with warnings.catch_warnings(action="error"):
        second.get_score(RESULTS)
    assert second.full_name is None


@pytest.mark.parametrize("metric", ["accuracy", "val_accuracy", "val/accuracy"])
def test_monitor_accepts_the_state_of_the_same_metric_under_another_name(metric: str) -> None:
    first = Monitor("accuracy", "max", strict=True)
    first.get_score(RESULTS)
    with warnings.catch_warnings(action="error"):
        assert Monitor(metric, "max", strict=True).matches_state(first.state_dict())


@pytest.mark.parametrize(
    ("metric", "mode", "message"),
    [
        ("val_b_loss", "min", r"monitors 'val/accuracy' \(max\), this run 'val_b_loss' \(min\)"),
        ("accuracy", "min", r"monitors 'val/accuracy' \(max\), this run 'accuracy' \(min\)"),
    ],
)
def test_monitor_rejects_the_state_of_another_metric_or_direction(metric: str, mode: Mode, message: str) -> None:
    first = Monitor("accuracy", "max", strict=True)
    first.get_score(RESULTS)
    with pytest.warns(HookWarning, match=message):
        assert not Monitor(metric, mode, strict=True).matches_state(first.state_dict())


def test_monitor_accepts_a_state_without_a_metric() -> None:
    assert Monitor("loss", "min", strict=True).matches_state(Monitor("f1", "max", strict=True).state_dict())
