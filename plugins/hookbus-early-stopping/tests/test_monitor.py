"""The metric that is watched."""

import warnings

import pytest

from hookbus import Metrics
from hookbus.errors import HookWarning, MetricError
from hookbus_early_stopping.monitor import Monitor

RESULTS = Metrics({"val/a/loss": 0.5, "val/b/loss": 0.25, "val/accuracy": 0.75})


@pytest.mark.parametrize(("metric", "score"), [("val_a_loss", 0.5), ("b/loss", 0.25), ("accuracy", 0.75)])
def test_it_is_found_by_any_name_that_means_one_thing(metric: str, score: float) -> None:
    assert Monitor(metric, strict=True).score(RESULTS) == score


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("loss", "can mean val/a/loss or val/b/loss: write the full name"),
        ("f1", "no metric 'f1'. There are: val/a/loss, val/accuracy, val/b/loss"),
    ],
)
def test_it_is_an_error_where_it_is_not_there(metric: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        Monitor(metric, strict=True).score(RESULTS)


def test_it_is_one_warning_where_that_is_enough() -> None:
    monitor = Monitor("f1", strict=False)
    assert not monitor.missed
    with pytest.warns(HookWarning, match=r"There are: .*Set monitor\."):
        assert monitor.score(RESULTS) is None
    with warnings.catch_warnings(action="error"):
        assert monitor.score(RESULTS) is None
    assert monitor.missed


def test_it_is_not_missed_any_more_once_it_was_seen() -> None:
    monitor = Monitor("f1", strict=False)
    with pytest.warns(HookWarning):
        monitor.score(RESULTS)
    assert monitor.score(Metrics({"val/f1": 0.5})) == 0.5
    assert not monitor.missed


def test_it_is_warned_of_once_in_a_run_that_is_resumed() -> None:
    first, second = Monitor("f1", strict=False), Monitor("f1", strict=False)
    with pytest.warns(HookWarning):
        first.score(RESULTS)
    second.load_state_dict(first.state_dict())
    with warnings.catch_warnings(action="error"):
        second.score(RESULTS)
    assert second.missed
