"""Curves of histories: charts by metric, and the unit of their axes."""

from __future__ import annotations

from typing import Any

from hookbus import History
from hookbus._run.history_curves import get_title, get_unit, group_curves


def make_row(epoch: int, iteration: int, kind: str = "epoch", **values: float) -> dict[str, Any]:
    names = {name.replace("__", "/"): value for name, value in values.items()}
    return {"kind": kind, "epoch": epoch, "iteration": iteration, "step": iteration, "seconds": 1.0, **names}


def test_metric_of_all_stages_and_loaders_shares_a_chart_and_the_loss_is_first() -> None:
    rows = [make_row(1, 4, tokens=8, lr=0.1, val__a__accuracy=0.5, train__loss=2.0), make_row(2, 8, val__loss=3.0)]
    charts = group_curves({"x": History(rows)})
    assert charts == {
        "loss": {"train/loss": [(1.0, 2.0)], "val/loss": [(2.0, 3.0)]},
        "accuracy": {"val/a/accuracy": [(1.0, 0.5)]},
        "learning rate": {"lr": [(1.0, 0.1)]},
    }
    assert list(charts) == ["loss", "accuracy", "learning rate"]


def test_curves_of_several_runs_are_named_by_the_run() -> None:
    histories = {"a": History([make_row(1, 4, train__loss=1.0)]), "b": History([make_row(1, 4, train__loss=2.0)])}
    assert group_curves(histories) == {"loss": {"a train/loss": [(1.0, 1.0)], "b train/loss": [(1.0, 2.0)]}}


def test_rows_within_epochs_are_drawn_by_iteration() -> None:
    history = History([make_row(1, 2, "validation", val__loss=1.0), make_row(1, 4, val__loss=2.0)])
    assert get_unit({"x": history}) == "iteration"
    assert group_curves({"x": history})["loss"]["val/loss"] == [(2.0, 1.0), (4.0, 2.0)]


def test_title_is_the_name_of_the_metric_without_stage_and_loader() -> None:
    names = ["train/loss", "val/a/loss", "test/b", "time/iter", "lr/head", "lr"]
    assert [*map(get_title, names)] == ["loss", "loss", "b", "time", "learning rate", "learning rate"]
