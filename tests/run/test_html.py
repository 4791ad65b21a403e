"""Tests of the HTML of runs and histories, which notebooks display."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from hookbus import BestResult, Hook
from hookbus._run.html import FIRST_ROWS, LAST_ROWS, MAX_CHARTS, build_history_html, build_run_html
from hookbus._run.run import Run
from hookbus.testing import fake_training


class Table(HTMLParser):
    """Reader of the cells, the titles of charts and the elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.charts: list[str] = []
        self.elements: set[str] = set()
        self._is_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "svg":
            self.charts.append(dict(attrs)["aria-label"] or "")
        self._is_cell = tag in ("td", "th", "b")

    def handle_data(self, data: str) -> None:
        if self._is_cell and self.rows:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = False


def build_rows(count: int, **values: float) -> list[dict[str, Any]]:
    return [
        {"kind": "epoch", "epoch": n, "iteration": 10 * n, "step": 10 * n, "seconds": 2.0 * n, "lr": 0.1, **values}
        for n in range(1, count + 1)
    ]


def test_table_has_a_row_per_epoch_with_the_learning_rate_at_the_end() -> None:
    rows = build_rows(2, **{"train/loss": 0.5, "val/accuracy": 0.75})

    assert Table(build_history_html(rows)).rows == [
        ["epoch", "train/loss", "val/accuracy", "lr", "time"],
        ["1", "0.5000", "0.7500", "0.1", "0:02"],
        ["2", "0.5000", "0.7500", "0.1", "0:02"],
    ]


def test_rows_within_an_epoch_have_an_iteration_and_missing_values_are_empty() -> None:
    rows = build_rows(1, **{"val/loss": 0.5})
    rows.insert(0, {"kind": "validation", "epoch": 1, "iteration": 5, "step": 5, "seconds": 1.0, "train/loss": 2.0})

    page = Table(build_history_html(rows))
    assert page.rows == [
        ["epoch", "iteration", "train/loss", "val/loss", "lr", "time"],
        ["1", "5", "2.000", "", "", "0:01"],
        ["1", "10", "", "0.5000", "0.1", "0:01"],
    ]


def test_a_long_history_shows_the_first_and_the_last_rows() -> None:
    page = Table(build_history_html(build_rows(100, loss=0.5)))

    epochs = [row[0] for row in page.rows[1:]]
    assert epochs == [*map(str, range(1, FIRST_ROWS + 1)), "⋯", *map(str, range(101 - LAST_ROWS, 101))]


def test_best_values_of_a_long_history_are_marked_in_their_rows() -> None:
    run = fake_training([], epochs=30, batches=1, losses=lambda iteration: 100.0 - iteration).run
    for epoch in (2, 10, 30):
        run.best["train/loss"] = BestResult(100.0 - epoch, epoch, epoch)

        marked = [row[0] for row in Table(build_run_html(run)).rows if row[1].startswith("*")]
        assert marked == ([] if epoch == 10 else [str(epoch)])


def test_metrics_of_one_name_share_a_chart_and_losses_are_first() -> None:
    values = {"val/accuracy": 0.5, "train/loss": 1.0, "val/clean/loss": 2.0, "val/loss": 3.0}

    assert Table(build_history_html(build_rows(3, **values))).charts == ["loss", "accuracy"]


def test_the_number_of_charts_is_limited() -> None:
    assert len(Table(build_history_html(build_rows(2, **{f"val/m{i}": i for i in range(20)}))).charts) == MAX_CHARTS


def test_a_single_epoch_has_no_curves() -> None:
    assert Table(build_history_html(build_rows(1, loss=1.0))).charts == []


def test_an_empty_history_is_stated() -> None:
    assert "no rows yet: the first one is recorded at the end of an epoch or validation" in build_history_html([])


def test_names_and_values_that_are_not_finite_are_text() -> None:
    page = Table(build_history_html(build_rows(3, **{"val/<script>": float("nan"), "val/ok": 1.0})))

    assert "script" not in page.elements
    assert page.rows[1][1:3] == ["nan", "1.000"]


def get_run(*hooks: object, epochs: int = 2) -> Run:
    return fake_training(
        [*hooks], epochs=epochs, batches=2, losses=lambda iteration: [4.0, 2.0, 1.0, 1.0][iteration - 1]
    ).run


def test_a_run_displays_its_outcome_best_results_and_table() -> None:
    run = get_run()
    run.best["train/loss"] = BestResult(1.0, epoch=2, step=4)

    html = run._repr_html_()
    assert "finished</b> · epoch 2/2 · iteration 4 · " in html
    assert "<div>best train/loss 1.000 (epoch 2)</div>" in html
    assert [row[1] for row in Table(html).rows] == ["train/loss", "3.000", "*1.000"]
    assert Table(html).charts == ["loss"]


class Fail(Hook):
    def after_train_iter(self, run: Run) -> None:
        raise ValueError("<script>alert(1)</script>")


def test_the_error_of_a_run_is_displayed_and_escaped() -> None:
    html = ""

    class Display(Hook):
        def cleanup(self, run: Run) -> None:
            nonlocal html
            html = build_run_html(run)

    with pytest.raises(ValueError, match="alert"):
        get_run(Fail(), Display())

    assert "failed</b>" in html
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in html


def test_text_of_a_run_states_outcome_and_progress() -> None:
    assert repr(get_run()) == "Run(train, finished, epoch 2/2, iteration 4)"


def test_history_displays_its_table_and_curves() -> None:
    history = get_run().history

    assert Table(history._repr_html_()).charts == ["loss"]
