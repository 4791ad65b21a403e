"""Tests of tables and paragraphs in terminals of any width."""

from __future__ import annotations

import pytest
from rich.text import Text

from hookbus._cli.layout import print_paragraph, print_table

HOOKS = [("ema", "EMAHook", "hookbus-ema"), ("eval", "EvalHook", "hookbus-eval")]


def get_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed lines without trailing spaces."""
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return the monkeypatch that sets the width: `wide.setenv("COLUMNS", "40")`."""
    return monkeypatch


class TestTable:
    @pytest.mark.parametrize("columns", [28, 120])  # 4 + 8 + 12 letters, and twice 2 spaces
    def test_rows_are_aligned_below_a_header(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch, columns: int
    ) -> None:
        wide.setenv("COLUMNS", str(columns))
        print_table(["name", "class", "package"], HOOKS)
        assert get_lines(capsys) == [
            "name  class     package",
            "ema   EMAHook   hookbus-ema",
            "eval  EvalHook  hookbus-eval",
        ]

    def test_narrow_output_lists_cells_below_the_title(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "27")
        print_table(["name", "class", "package"], HOOKS)
        assert get_lines(capsys) == [
            "name",
            "    class, package",
            "ema",
            "    EMAHook, hookbus-ema",
            "eval",
            "    EvalHook, hookbus-eval",
        ]

    def test_rightmost_cells_are_wrapped_first(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "30")
        print_table(["name", "from", "when"], [("ema", "class EMAHook", "every(1) | once(50)")])
        assert get_lines(capsys) == [
            "name  from           when",
            "ema   class EMAHook  every(1)",
            "                     |",
            "                     once(50)",
        ]

    def test_row_may_be_short_and_indented(self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch) -> None:
        rows: list[list[str | Text]] = [[Text("before_run", "bold")], ["  ema", "40"], ["  eval", ""]]
        wide.setenv("COLUMNS", "20")
        print_table(["point", "priority"], rows)
        assert get_lines(capsys) == ["point       priority", "before_run", "  ema       40", "  eval"]
        wide.setenv("COLUMNS", "19")
        print_table(["point", "priority"], rows)
        assert get_lines(capsys) == ["point", "    priority", "before_run", "  ema", "      40", "  eval"]

    def test_title_may_have_several_cells(self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch) -> None:
        wide.setenv("COLUMNS", "20")
        print_table(["", "name", "problem"], [("ok", "ema", ""), ("broken", "eval", "No module named 'acme'.")], 2)
        assert get_lines(capsys) == [
            "name",
            "    problem",
            "ok ema",
            "broken eval",
            "    No module named",
            "    'acme'.",
        ]

    def test_markup_is_escaped(self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch) -> None:
        for columns in ("30", "8"):
            wide.setenv("COLUMNS", columns)
            print_table(["a", "b"], [("[bold]", "[/]")])
            assert get_lines(capsys)[-1].split()[-1] == "[/]"


class TestParagraph:
    def test_paragraph_is_indented_without_breaking_words(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "20")
        print_paragraph("a read-only word of [markup] in runs/of-some-length/digits", 2, 3)
        assert get_lines(capsys) == [
            "  a read-only word",
            "     of [markup] in",
            "     runs/of-some-length/digits",
        ]
