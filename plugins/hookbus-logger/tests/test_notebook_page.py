"""Tests of the content of the display of a notebook."""

from __future__ import annotations

from hookbus_logger.epoch_table import Row
from hookbus_logger.notebook_page import MAX_ROWS, Bar, NotebookPage


def build_page(rows: int) -> NotebookPage:
    page = NotebookPage()
    for epoch in range(1, rows + 1):
        page.add_row(Row(f"{epoch}/{rows}", {"train/loss": 0.25, "val/<b>": 1 / epoch, "lr": 0.1}, 62))
    return page


def test_table_has_a_row_per_epoch_and_escaped_titles() -> None:
    html = build_page(2).to_html()

    assert "<th>epoch</th><th>train/loss</th><th>&lt;b&gt;</th><th>lr</th><th>time</th>" in html
    assert "<tr><td>2/2</td><td>0.2500</td><td>0.5000</td><td>0.1</td><td>1:02</td></tr>" in html
    assert "<b>" not in html


def test_best_value_has_an_asterisk() -> None:
    page = NotebookPage()
    page.add_row(Row("1/1", {"val/loss": 0.5}, best=frozenset({"val/loss"})))

    assert '<td title="best so far"><b>*0.5000</b></td>' in page.to_html()
    assert page.to_text().splitlines()[-1].endswith("*0.5000")


def test_text_contains_the_same_table() -> None:
    page = build_page(2)
    page.title, page.closing = "digits", ["finished"]

    title, _, *rows, closing = page.to_text().splitlines()
    assert [row.split() for row in rows] == [
        ["1/2", "0.2500", "1.000", "0.1", "1:02"],
        ["2/2", "0.2500", "0.5000", "0.1", "1:02"],
    ]
    assert (title, closing) == ("digits", "finished")


def test_title_progress_and_closing_lines_are_escaped() -> None:
    page = NotebookPage(title="<t>", progress=Bar("<p>", 0.5, ["<d>"]), closing=["<c>"])

    html = page.to_html()
    assert all(f"&lt;{name}&gt;" in html and f"<{name}>" not in html for name in "tpdc")


def test_size_is_independent_of_the_number_of_rows() -> None:
    html = build_page(1000).to_html()

    assert html.count("<tr>") == MAX_ROWS + 1
    assert "<div>the last 50 of 1000 rows; run.history contains every epoch</div>" in html
    assert "<td>951/1000</td>" in html
    assert "<td>950/1000</td>" not in html


def test_bar_shows_the_share() -> None:
    assert "width:64.0%" in Bar("3/6", 0.64).to_html()
    assert "width:100.0%" in Bar("3/6", 1.5).to_html(), "a loader may be longer than expected"
    assert "width:" not in Bar("3/6", None, ["3 it"]).to_html()
    assert Bar("3/6", 0.64, ["400/625", "eta 0:00:07"]).to_text() == "3/6  400/625  eta 0:00:07"
