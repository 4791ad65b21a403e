"""The rows of a history: columns by name, conversion, and the rows up to a checkpoint."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookbus import History
from hookbus._run.history import cut_rows
from hookbus._run.history_file import HistoryFile
from hookbus.errors import HookbusError, MetricError

FIRST = {"kind": "validation", "epoch": 1, "iteration": 2, "step": 2, "seconds": 0.5, "val/loss": 3.0}
SECOND = {
    "kind": "epoch", "epoch": 1, "iteration": 4, "step": 4, "seconds": 1.5, "lr": 0.1, "train/loss": math.inf,
    "val/loss": 2.0, "val/a": 1.0,
}  # fmt: skip


@pytest.fixture
def history() -> History:
    return History([FIRST, SECOND])


def test_column_is_a_list_with_none_for_missing_values(history: History) -> None:
    assert history["val/loss"] == history["val_loss"] == [3.0, 2.0]
    assert history["train/loss"] == [None, math.inf]
    assert history["a"] == [None, 1.0]
    assert (history["kind"], history["step"], history["lr"]) == (["validation", "epoch"], [2, 4], [None, 0.1])


def test_unknown_column_is_an_error_with_close_matches_or_the_reason(history: History) -> None:
    with pytest.raises(MetricError, match=r"Did you mean 'val/loss'\? Available: .*val/a, val/loss\."):
        history["val/los"]
    with pytest.raises(
        MetricError, match="no row has 'val/loss', because there are no rows yet. The first one is reco"
    ):
        History()["val/loss"]
    assert (History()["epoch"], "val/loss" in History()) == ([], False)


def test_rows_are_copies_in_a_sequence(history: History) -> None:
    assert (len(history), list(history), history.rows) == (2, [FIRST, SECOND], [FIRST, SECOND])
    assert (history[-1], history[:1]) == (SECOND, [FIRST])
    history[0]["val/loss"] = history.rows[0]["val/loss"] = next(iter(history))["val/loss"] = 0.0
    assert history["val/loss"] == [3.0, 2.0]


def test_unknown_column_is_an_error_that_lists_the_names(history: History) -> None:
    with pytest.raises(MetricError, match=r"Unknown metric 'val/acc'.*Available: .*val/a"):
        _ = history["val/acc"]
    with pytest.raises(MetricError, match="Ambiguous metric 'loss'"):
        _ = history["loss"]
    assert ("val/acc" in history, "val/a" in history, FIRST in history) == (False, True, True)


def test_text_names_the_metrics(history: History) -> None:
    assert repr(history) == "History(2 rows: val/loss, lr, train/loss, val/a)"
    assert repr(History()) == "History(0 rows)"


def test_pandas_has_a_column_per_value(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(rows: Any, columns: Any) -> tuple[Any, Any]:
        return rows, columns

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=build))
    frame: Any = history.to_pandas()
    assert frame == ([FIRST, SECOND], history.columns)


def test_missing_pandas_is_an_error_that_names_the_command(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HookbusError, match=r"history.to_pandas: .*pip install pandas"):
        history.to_pandas()


def test_csv_has_empty_cells_for_missing_values(history: History, tmp_path: Path) -> None:
    history.to_csv(tmp_path / "new" / "history.csv")
    assert (tmp_path / "new" / "history.csv").read_text() == (
        "kind,epoch,iteration,step,seconds,val/loss,lr,train/loss,val/a\n"
        "validation,1,2,2,0.5,3.0,,,\n"
        "epoch,1,4,4,1.5,2.0,0.1,inf,1.0\n"
    )


def test_histories_with_equal_rows_are_equal_also_with_nan(tmp_path: Path) -> None:
    rows = [{**SECOND, "train/loss": float("nan")}]
    HistoryFile(tmp_path / "history.jsonl", "r").write(rows)
    assert History.read(tmp_path) == History(rows) != History([SECOND])


def test_history_is_read_from_a_work_directory_and_a_file(
    history: History, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    HistoryFile(tmp_path / "history.jsonl", "r").write([FIRST, SECOND])
    assert History.read(tmp_path) == History.read(str(tmp_path / "history.jsonl")) == history
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write("{}\n")
    assert History.read(tmp_path) == history
    assert "history.jsonl:3: not a row of a history" in caplog.text
    with pytest.raises(HookbusError, match="history cannot be read: No such file"):
        History.read(tmp_path / "other")


def test_rows_up_to_a_checkpoint() -> None:
    kinds = [("validation", 1, 2), ("epoch", 1, 4), ("validation", 2, 6), ("epoch", 2, 8), ("end", 3, 9)]
    rows = [{"kind": kind, "epoch": epoch, "iteration": iteration} for kind, epoch, iteration in kinds]
    rows[1] |= {"train/loss": 1.0, "val/loss": 2.0}
    assert cut_rows(rows, 9, 2) == rows[:4]  # the resumed run continues the epoch of the last row
    assert cut_rows(rows, 8, 2) == rows[:4]
    assert cut_rows(rows, 8, 1) == rows[:3]  # a checkpoint of the last iteration of an epoch that is still open
    assert cut_rows(rows, 6, 1) == rows[:3]
    assert cut_rows(rows, 5, 1) == rows[:2]
    # The validation of the last iteration is not repeated, but the end of the epoch is.
    assert cut_rows(rows, 4, 0) == [rows[0], {"kind": "validation", "epoch": 1, "iteration": 4, "val/loss": 2.0}]
    assert cut_rows(rows, 2, 0) == rows[:1]
    assert cut_rows(rows, 0, 0) == []
