"""Tests of `hookbus._utils.html`."""

from __future__ import annotations

from hookbus._utils.html import build_html_table


def test_a_table_has_a_header_and_escapes_every_text() -> None:
    table = build_html_table(["epoch", "val/<b>"], [["1", "<script>"], ["2", "&"]])

    assert table == (
        "<table><thead><tr><th>epoch</th><th>val/&lt;b&gt;</th></tr></thead>"
        "<tbody><tr><td>1</td><td>&lt;script&gt;</td></tr><tr><td>2</td><td>&amp;</td></tr></tbody></table>"
    )


def test_best_values_are_bold_with_an_asterisk() -> None:
    table = build_html_table(["epoch", "loss"], [["1", "0.5"], ["2", "0.4"]], best={(1, 1)})

    assert '<tr><td>1</td><td>0.5</td></tr><tr><td>2</td><td title="best so far"><b>*0.4</b></td></tr>' in table
