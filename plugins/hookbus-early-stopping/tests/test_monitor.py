"""The metric that is watched."""

import warnings

import pytest

from hookbus import Metrics
from hookbus.errors import HookWarning, MetricError
from hookbus_early_stopping.decision import Mode
from hookbus_early_stopping.monitor import Monitor

RESULTS = Metrics({"val/a/loss": 0.5, "val/b/loss": 0.25, "val/accuracy": 0.75})


@pytest.mark.parametrize(("metric", "score"), [("val_a_loss", 0.5), ("b/loss", 0.25), ("accuracy", 0.75)])
def test_it_is_found_by_any_name_that_means_one_thing(metric: str, score: float) -> None:
    assert Monitor(metric, "max", strict=True).score(RESULTS) == score


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("loss", "can mean val/a/loss or val/b/loss: write the full name"),
        ("f1", "no metric 'f1'. Available: val/a/loss, val/accuracy, val/b/loss"),
    ],
)
def test_it_is_an_error_where_it_is_not_there(metric: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        Monitor(metric, "max", strict=True).score(RESULTS)


def test_it_is_one_warning_where_that_is_enough() -> None:
    monitor = Monitor("f1", "max", strict=False)
    assert not monitor.missed
    with pytest.warns(HookWarning, match=r"Available: .*Set monitor\."):
        assert monitor.score(RESULTS) is None
    with warnings.catch_warnings(action="error"):
        assert monitor.score(RESULTS) is None
    assert monitor.missed


def test_it_is_not_missed_any_more_once_it_was_seen() -> None:
    monitor = Monitor("f1", "max", strict=False)
    with pytest.warns(HookWarning):
        monitor.score(RESULTS)
    assert monitor.score(Metrics({"val/f1": 0.5})) == 0.5
    assert not monitor.missed


def test_it_is_warned_of_once_in_a_run_that_is_resumed() -> None:
    first, second = Monitor("f1", "max", strict=False), Monitor("f1", "max", strict=False)
    with pytest.warns(HookWarning):
        first.score(RESULTS)
    second.load_state_dict(first.state_dict())
    with warnings.catch_warnings(action="error"):
        second.score(RESULTS)
    assert second.missed


@pytest.mark.parametrize("metric", ["accuracy", "val_accuracy", "val/accuracy"])
def test_it_goes_on_from_what_was_seen_under_another_spelling(metric: str) -> None:
    first = Monitor("accuracy", "max", strict=True)
    first.score(RESULTS)
    with warnings.catch_warnings(action="error"):
        assert Monitor(metric, "max", strict=True).goes_on_from(first.state_dict())


@pytest.mark.parametrize(
    ("metric", "mode", "message"),
    [
        ("val_b_loss", "min", r"judged by 'val/accuracy' \(max\) so far, and now by 'val_b_loss' \(min\)"),
        ("accuracy", "min", r"judged by 'val/accuracy' \(max\) so far, and now by 'accuracy' \(min\)"),
    ],
)
def test_it_does_not_go_on_from_another_metric_or_direction(metric: str, mode: Mode, message: str) -> None:
    first = Monitor("accuracy", "max", strict=True)
    first.score(RESULTS)
    with pytest.warns(HookWarning, match=message):
        assert not Monitor(metric, mode, strict=True).goes_on_from(first.state_dict())


def test_it_goes_on_from_a_state_in_which_nothing_was_seen_yet() -> None:
    assert Monitor("loss", "min", strict=True).goes_on_from(Monitor("f1", "max", strict=True).state_dict())
