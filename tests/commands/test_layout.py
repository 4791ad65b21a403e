"""Tables and paragraphs in terminals of any width."""

from __future__ import annotations

import pytest
from rich.text import Text

from hookbus.commands.layout import show_paragraph, show_table

HOOKS = [("ema", "EMAHook", "hookbus-ema"), ("eval", "EvalHook", "hookbus-eval")]


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was shown, without the spaces that fill the columns."""
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets how wide standard output is: `wide.setenv("COLUMNS", "40")`."""
    return monkeypatch


class TestTable:
    @pytest.mark.parametrize("columns", [28, 120])  # 4 + 8 + 12 letters, and twice 2 spaces
    def test_rows_stand_under_a_header(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch, columns: int
    ) -> None:
        wide.setenv("COLUMNS", str(columns))
        show_table(["name", "class", "package"], HOOKS)
        assert lines_of(capsys) == [
            "name  class     package",
            "ema   EMAHook   hookbus-ema",
            "eval  EvalHook  hookbus-eval",
        ]

    def test_where_a_name_would_break_the_cells_stand_below_each_other(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "27")
        show_table(["name", "class", "package"], HOOKS)
        assert lines_of(capsys) == [
            "name",
            "    class, package",
            "ema",
            "    EMAHook, hookbus-ema",
            "eval",
            "    EvalHook, hookbus-eval",
        ]

    def test_sentences_go_on_in_their_cell_from_the_right(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "30")
        show_table(["name", "from", "when"], [("ema", "class EMAHook", "every(1) | once(50)")])
        assert lines_of(capsys) == [
            "name  from           when",
            "ema   class EMAHook  every(1)",
            "                     |",
            "                     once(50)",
        ]

    def test_a_row_may_end_early_and_be_indented(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        rows: list[list[str | Text]] = [[Text("before_run", "bold")], ["  ema", "40"], ["  eval", ""]]
        wide.setenv("COLUMNS", "20")
        show_table(["point", "priority"], rows)
        assert lines_of(capsys) == ["point       priority", "before_run", "  ema       40", "  eval"]
        wide.setenv("COLUMNS", "19")
        show_table(["point", "priority"], rows)
        assert lines_of(capsys) == ["point", "    priority", "before_run", "  ema", "      40", "  eval"]

    def test_a_title_may_be_of_several_cells(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "20")
        show_table(["", "name", "problem"], [("ok", "ema", ""), ("broken", "eval", "No module named 'acme'.")], 2)
        assert lines_of(capsys) == [
            "name",
            "    problem",
            "ok ema",
            "broken eval",
            "    No module named",
            "    'acme'.",
        ]

    def test_letters_that_are_markup_elsewhere_are_letters(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        for columns in ("30", "8"):
            wide.setenv("COLUMNS", columns)
            show_table(["a", "b"], [("[bold]", "[/]")])
            assert lines_of(capsys)[-1].split()[-1] == "[/]"


class TestParagraph:
    def test_it_is_indented_and_hangs_and_no_word_breaks(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "20")
        show_paragraph("a read-only word of [markup] in runs/of-some-length/digits", 2, 3)
        assert lines_of(capsys) == [
            "  a read-only word",
            "     of [markup] in",
            "     runs/of-some-length/digits",
        ]
