"""CSV file: header, columns that are added, the current row, and damage."""

import csv
import math
import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hookbus_logger import csv_file
from hookbus_logger.csv_file import CsvFile, iter_rows


def write(path: Path, *rows: dict[str, float], separator: str = ",") -> CsvFile:
    """Write rows, and return the file, which is closed."""
    file = CsvFile(path, separator)
    for row in rows:
        file.start_row()
        file.write(row)
    file.close()
    return file


def test_rows_have_the_cells_of_the_header(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"epoch": 1, "step": 2, "loss": 0.1}, {"epoch": 1, "step": 4, "loss": 1e-9})
    assert (tmp_path / "a.csv").read_bytes() == b"epoch,step,loss\n1,2,0.1\n1,4,1e-09\n"


def test_later_columns_are_added_and_missing_values_are_empty(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"step": 1, "b": 1.0}, {"step": 2, "c": 2.0, "a": 3.0}, {"step": 3, "b": 4.0})
    assert (tmp_path / "a.csv").read_text() == "epoch,step,b,a,c\n,1,1.0,,\n,2,,3.0,2.0\n,3,4.0,,\n"


@pytest.mark.parametrize(("value", "cell"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (3, "3")])
def test_values_that_are_not_finite_are_written(value: float, cell: str, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"step": 1, "x": value})
    assert (tmp_path / "a.csv").read_text() == f"epoch,step,x\n,1,{cell}\n"


def test_names_with_the_separator_quotes_and_line_breaks_are_one_cell(tmp_path: Path) -> None:
    names = ["a;b", 'say "x"', "two\nlines", "lone\udce9"]
    write(tmp_path / "a.csv", dict.fromkeys(names, 1.0), {"z": 2.0}, separator=";")
    with (tmp_path / "a.csv").open(newline="") as file:
        header, *rows = csv.reader(file, delimiter=";")
    assert header == ["epoch", "step", "a;b", "lone\\udce9", 'say "x"', "two\\nlines", "z"]
    assert rows == [["", "", "1.0", "1.0", "1.0", "1.0", ""], ["", "", "", "", "", "", "2.0"]]


def test_current_row_is_replaced_and_its_columns_are_sorted(tmp_path: Path) -> None:
    file = CsvFile(tmp_path / "a.csv")
    file.write({"step": 1, "m": 1.0})
    file.start_row()
    file.write({"step": 2, "z": 2.0})
    file.write({"step": 2, "z": 2.0, "a": 1e300})
    file.write({"step": 2, "z": 2.0, "a": 5.0})
    assert (file.complete_rows, file.complete_columns) == (1, 3)
    assert (tmp_path / "a.csv").read_text() == "epoch,step,m,a,z\n,1,1.0,,\n,2,,5.0,2.0\n"
    file.close()


def test_truncated_file_has_the_given_rows_and_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"step": 1, "a": 1.0}, {"step": 2, "b": 2.0}, {"step": 3, "c": 3.0})
    file = CsvFile(tmp_path / "a.csv")
    file.truncate(1, 3)
    file.write({"step": 2, "d": 4.0})
    file.close()
    assert (tmp_path / "a.csv").read_text() == "epoch,step,a,d\n,1,1.0,\n,2,,4.0\n"


@pytest.mark.parametrize(("step", "rows"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_rows_of_later_steps_are_removed(step: int, rows: int, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"step": 1}, {"step": 2}, {"step": 3})
    file = CsvFile(tmp_path / "a.csv")
    file.remove_rows_after(step)
    file.close()
    assert len(list(iter_rows(tmp_path / "a.csv"))) == rows


def test_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("epoch,step,a\n1,1,0.5\n1,2,0.")
    write(tmp_path / "a.csv", {"epoch": 1, "step": 2, "a": 0.25})
    assert (tmp_path / "a.csv").read_text() == "epoch,step,a\n1,1,0.5\n1,2,0.25\n"


def test_last_line_without_a_line_break_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("epoch,step,a\n1,1,0.5\n1,2,0.75")
    file = CsvFile(tmp_path / "a.csv", completes_line=True)
    file.write({"step": 3, "b": 1.0})
    file.close()
    assert (tmp_path / "a.csv").read_text() == "epoch,step,a,b\n1,1,0.5,\n1,2,0.75,\n,3,,1.0\n"


def test_hard_link_keeps_its_content(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"step": 1})
    os.link(tmp_path / "a.csv", tmp_path / "backup.csv")
    write(tmp_path / "a.csv", {"step": 2})
    assert (tmp_path / "backup.csv").read_text() == "epoch,step\n,1\n"
    assert (tmp_path / "a.csv").read_text() == "epoch,step\n,1\n,2\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\n", "codec can't decode"),
        (b"\na,b\n", "its first line is empty"),
        (b"a,b\n1\n1,2,3\n", "row 2 has 3 cells, but the header has 2"),
    ],
)
def test_file_of_another_type_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.csv is not a CSV file: .*{reason}"):
        CsvFile(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == content


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be deleted")
def test_deleted_file_is_reported_once_and_created_again(tmp_path: Path) -> None:
    file = CsvFile(tmp_path / "a.csv")
    file.write({"step": 1, "a": 1.0})
    (tmp_path / "a.csv").unlink()
    with pytest.raises(FileNotFoundError, match="deleted while it was open"):
        file.write({"step": 1, "a": 2.0})
    file.write({"step": 1, "a": 2.0})
    file.close()
    assert (tmp_path / "a.csv").read_text() == "epoch,step,a\n,1,2.0\n"


@pytest.mark.parametrize("row", [{"step": 2, "a": 2.0}, {"step": 2, "b": 2.0}], ids=["row", "column"])
def test_row_that_cannot_be_written_leaves_the_file_unchanged(
    row: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CsvFile(tmp_path / "a.csv")
    file.write({"step": 1, "a": 1.0})
    file.start_row()
    before = (tmp_path / "a.csv").read_text()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(csv_file, "atomic_write", fail)
        patch.setattr(CsvFile, "_write_last", lambda self, offset, line: fail() if line else None)
        with pytest.raises(OSError, match="No space left"):
            file.write(row)
    assert (tmp_path / "a.csv").read_text() == before
    file.write(row)
    assert list(iter_rows(tmp_path / "a.csv")) == [
        {"step": "1", "a": "1.0"},
        {name: repr(value) for name, value in row.items()},
    ]
    file.close()


NAMES = st.sampled_from(["a", "b", "c", "d,e", 'f"'])
VERSIONS = st.lists(st.dictionaries(NAMES, st.floats(allow_nan=False), min_size=1), min_size=1, max_size=3)


@pytest.mark.slow
@hypothesis.given(st.lists(VERSIONS, max_size=6), st.integers(0, 6))
@hypothesis.settings(max_examples=30, deadline=None)
def test_file_contains_the_last_version_of_each_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[dict[str, float]]], reopened: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    file, expected = CsvFile(path), []
    for number, versions in enumerate(rows):
        if number == reopened:
            file.close()
            file = CsvFile(path)
        file.start_row()
        merged: dict[str, float] = {}
        for version in versions:
            merged |= version
            file.write(merged)
        expected.append({name: repr(value) for name, value in merged.items()})
    file.close()
    assert list(iter_rows(path)) == expected


def test_rows_written_together_are_those_written_one_by_one(tmp_path: Path) -> None:
    rows = [{"step": 1, "z": 1.0}, {"step": 2, "b": 2.0, "a": 3.0}, {"step": 3, "z": 4.0}, {"step": 4, "c": 5.0}]
    one_by_one = write(tmp_path / "a.csv", *rows)
    file = CsvFile(tmp_path / "b.csv")
    file.write(rows[0])
    file.write({**rows[0], "step": 9}, *rows[1:3])
    file.write(rows[2], rows[3])
    file.close()
    assert (tmp_path / "b.csv").read_text() == (tmp_path / "a.csv").read_text().replace(",1,", ",9,", 1)
    assert (file.complete_rows, file.complete_columns) == (one_by_one.complete_rows, one_by_one.complete_columns)
