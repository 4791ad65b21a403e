"""Monitored metric: its name, its absence, and its state."""

import pytest

from hookbus import Metrics
from hookbus.errors import MetricError
from hookbus_early_stopping.monitor import Monitor
from hookbus_early_stopping.stopping_rule import Mode

RESULTS = Metrics({"val/a/loss": 0.5, "val/b/loss": 0.25, "val/accuracy": 0.75})


def build(metric: str, mode: Mode = "max", *, strict: bool = True) -> tuple[Monitor, list[str]]:
    """Return a monitor and the list of the warnings that it logs."""
    warned = list[str]()
    return Monitor(metric, mode, strict=strict, warn=warned.append), warned


@pytest.mark.parametrize(("metric", "score"), [("val_a_loss", 0.5), ("b/loss", 0.25), ("accuracy", 0.75)])
def test_monitor_finds_the_metric_by_any_unambiguous_name(metric: str, score: float) -> None:
    assert build(metric)[0].get_score(RESULTS) == score


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("loss", "'loss'.* val/a/loss or val/b/loss"),
        ("f1", "'f1'.* val/a/loss, val/accuracy, val/b/loss"),
    ],
)
def test_strict_monitor_raises_if_the_metric_is_missing_or_ambiguous(metric: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        build(metric)[0].get_score(RESULTS)


def test_monitor_warns_once_about_a_missing_metric() -> None:
    monitor, warned = build("f1", strict=False)
    assert [monitor.get_score(RESULTS), monitor.get_score(RESULTS)] == [None, None]
    assert warned == [
        "the monitored metric is missing. Unknown metric 'f1'. Available: val/a/loss, val/accuracy, val/b/loss. "
        "Set `monitor`."
    ]
    assert monitor.full_name is None


def test_metric_is_not_missing_once_a_validation_provides_it() -> None:
    monitor, _ = build("f1", strict=False)
    monitor.get_score(RESULTS)
    assert monitor.get_score(Metrics({"val/f1": 0.5})) == 0.5
    assert monitor.full_name == "val/f1"


def test_monitor_does_not_repeat_the_warning_after_a_resume() -> None:
    (first, _), (second, warned) = build("f1", strict=False), build("f1", strict=False)
    first.get_score(RESULTS)
    second.load_state_dict(first.state_dict())
    second.get_score(RESULTS)
    assert warned == []
    assert second.full_name is None


@pytest.mark.parametrize("metric", ["accuracy", "val_accuracy", "val/accuracy"])
def test_monitor_accepts_the_state_of_the_same_metric_under_another_name(metric: str) -> None:
    first, _ = build("accuracy")
    first.get_score(RESULTS)
    other, warned = build(metric)
    assert other.matches_state(first.state_dict())
    assert warned == []


@pytest.mark.parametrize(
    ("metric", "mode", "message"),
    [
        ("val_b_loss", "min", "monitors 'val/accuracy' (max), this run 'val_b_loss' (min)"),
        ("accuracy", "min", "monitors 'val/accuracy' (max), this run 'accuracy' (min)"),
    ],
)
def test_monitor_rejects_the_state_of_another_metric_or_direction(metric: str, mode: Mode, message: str) -> None:
    first, _ = build("accuracy")
    first.get_score(RESULTS)
    other, warned = build(metric, mode)
    assert not other.matches_state(first.state_dict())
    reset = "The best score and the number of validations without improvement are reset."
    assert warned == [f"the checkpoint {message}. {reset}"]


def test_monitor_accepts_a_state_without_a_metric() -> None:
    assert build("loss", "min")[0].matches_state(build("f1")[0].state_dict())
