"""Self-contained pages: escaped texts, sections, tables and charts."""

from __future__ import annotations

import re

from hookbus._utils.page import build_charts, build_list, build_page, build_section, build_table


def test_page_contains_no_script_and_refers_to_no_other_file() -> None:
    page = build_page("<i>", [build_charts({"a": {"b": [(1, 2), (2, 3)]}}, "epoch"), "", build_list(["x"])])
    assert "<title>&lt;i&gt;</title>" in page
    assert not re.search(r"<script|<link|<img|src=|href=|@import|url\(", page)
    assert page.count("<svg") == 1


def test_section_table_and_list_escape_their_texts() -> None:
    table = build_table(["<a>", "b"], [["<b>", "1"]], [1])
    assert '<th>&lt;a&gt;</th><th class="number">b</th>' in table
    assert '<td>&lt;b&gt;</td><td class="number">1</td>' in table
    assert build_list(["<c>"]) == "<ul><li>&lt;c&gt;</li></ul>"
    assert build_section("Best <d>", table).startswith('<section id="best-&lt;d&gt;">\n<h2>Best &lt;d&gt;</h2>')


def test_part_without_content_is_omitted() -> None:
    assert (
        build_section("x", build_table(["a"], [])) == build_section("x", build_list([])) == build_charts({}, "") == ""
    )
