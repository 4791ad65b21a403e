"""Tests of the JSON lines file: complete rows in a fixed order after any failure."""

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_logger.json_lines import JsonLines, read_jsonl


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "metrics.jsonl"


def test_row_is_in_the_file_after_write(path: Path) -> None:
    lines = JsonLines(path)

    lines.write({"a": 1})
    assert path.read_text() == '{"a": 1}\n'
    lines.write({"a": "zwölf\n"})
    assert path.read_text(encoding="utf-8") == '{"a": 1}\n{"a": "zwölf\\n"}\n'

    assert lines.rows == 2
    lines.close()


def test_reopened_file_is_appended_to(path: Path) -> None:
    for number in range(3):
        lines = JsonLines(path)
        lines.write({"n": number})
        lines.close()

    assert read_jsonl(path) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_incomplete_last_line_is_removed_at_any_length(path: Path) -> None:
    content = b'{"n": 0}\n{"n": 1}\n'
    path.parent.mkdir()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        lines = JsonLines(path)
        lines.write({"n": 2})
        lines.close()

        before = content[:length].count(b"\n")
        assert read_jsonl(path) == [{"n": n} for n in range(before)] + [{"n": 2}]


def test_nan_raises_and_nothing_is_written(path: Path) -> None:
    lines = JsonLines(path)

    with pytest.raises(ValueError, match="not JSON compliant"):
        lines.write({"a": float("nan")})

    assert (path.read_bytes(), lines.rows) == (b"", 0)
    lines.close()


def test_lone_surrogate_is_escaped(path: Path) -> None:
    lines = JsonLines(path)
    lines.write({"a": "\udc80"})
    lines.close()

    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "\udc80"}


def test_full_disk_leaves_no_incomplete_line(path: Path) -> None:
    lines = JsonLines(path)
    lines.write({"n": 0})
    lines._file = FullDisk(lines._file, free=4)

    with pytest.raises(OSError, match="No space left"):
        lines.write({"n": 1})
    assert read_jsonl(path) == [{"n": 0}]
    lines._file = lines._file.file
    lines.write({"n": 2})

    assert read_jsonl(path) == [{"n": 0}, {"n": 2}]
    assert lines.rows == 2
    lines.close()


def test_deleted_file_raises_once_and_is_recreated(path: Path) -> None:
    lines = JsonLines(path)
    lines.write({"n": 0})
    shutil.rmtree(path.parent)
    lines.close_moment()  # must not raise: closing a moment writes nothing

    with pytest.raises(FileNotFoundError, match="the file was deleted while it was open"):
        lines.write({"n": 1})
    lines.write({"n": 2})

    assert read_jsonl(path) == [{"n": 2}]
    assert lines.rows == 1
    lines.close()


class FullDisk:
    """File on a disk with a limited number of free bytes."""

    def __init__(self, file: Any, free: int) -> None:
        self.file, self.free = file, free

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        if not self.free:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: self.free])
        self.free -= written
        return int(written)


def test_partial_writes_are_completed(path: Path) -> None:
    class PartialWrites(FullDisk):
        def write(self, data: bytes) -> int:
            return int(self.file.write(data[:3]))

    lines = JsonLines(path)
    lines._file = PartialWrites(lines._file, free=0)
    lines.write({"n": "more than three bytes"})

    assert read_jsonl(path) == [{"n": "more than three bytes"}]
    lines.close()


# -- order -----------------------------------------------------------------------------------------------


def test_rows_of_one_moment_are_sorted_by_key(path: Path) -> None:
    for order in itertools.permutations([1, 2, 3]):
        lines = JsonLines(path)
        lines.write({"key": 9}, moment="before", key=9)
        for key in order:
            lines.write({"key": key}, moment="now", key=key)
        lines.write({"key": 0}, moment="after", key=0)
        lines.close()

        assert [row["key"] for row in read_jsonl(path)] == [9, 1, 2, 3, 0]
        path.unlink()


def test_rows_with_equal_keys_keep_their_order(path: Path) -> None:
    lines = JsonLines(path)
    for value in (3, 1, 2):
        lines.write({"value": value}, moment="now", key="a")
    lines.close()

    assert [row["value"] for row in read_jsonl(path)] == [3, 1, 2]


def test_rows_are_inserted_into_a_reopened_moment(path: Path) -> None:
    lines = JsonLines(path)
    for key in "abd":
        lines.write({"key": key}, moment="before" if key == "a" else 1, key=key)
    lines.write({"key": "c"}, moment=1, key="c")
    position = lines.position
    lines.close()

    assert (position.moment, position.keys) == (1, ["b", "c", "d"])
    reopened = JsonLines(path)
    reopened.reopen_moment(position.moment, position.keys)
    reopened.write({"key": "bb"}, moment=1, key="bb")
    reopened.write({"key": "a"}, moment=2, key="a")
    assert [row["key"] for row in read_jsonl(path)] == ["a", "b", "bb", "c", "d", "a"]
    assert reopened.rows == 6
    reopened.close()


def test_rows_are_not_inserted_into_a_closed_moment(path: Path) -> None:
    lines = JsonLines(path)
    lines.write({"key": 2}, moment="now", key=2)
    lines.close_moment()
    lines.write({"key": 1}, moment="now", key=1)
    lines.close()

    assert [row["key"] for row in read_jsonl(path)] == [2, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3))))
def test_any_rows_are_written_and_sorted_within_each_moment(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "log.jsonl"
    lines = JsonLines(path)
    for number, (moment, key) in enumerate(rows):
        lines.write({"number": number}, moment=moment, key=key)
    lines.close()

    numbers = [row["number"] for row in read_jsonl(path)]
    groups = [list(group) for _, group in itertools.groupby(range(len(rows)), key=lambda n: rows[n][0])]
    assert numbers == [n for group in groups for n in sorted(group, key=lambda n: rows[n][1])]
    assert lines.rows == len(rows)


# -- removing --------------------------------------------------------------------------------------------


def test_filter_removes_rows_and_later_rows_are_appended(path: Path) -> None:
    lines = JsonLines(path)
    for number in range(5):
        lines.write({"n": number})

    lines.filter_rows(lambda number, row: number < 2 or row["n"] == 4)
    lines.write({"n": 5})

    assert read_jsonl(path) == [{"n": 0}, {"n": 1}, {"n": 4}, {"n": 5}]
    assert lines.rows == 4
    assert os.listdir(path.parent) == [path.name]
    lines.close()


def test_filter_does_not_replace_an_unchanged_file(path: Path) -> None:
    lines = JsonLines(path)
    lines.write({"n": 0})
    before = path.stat().st_ino

    lines.filter_rows(lambda number, row: True)

    assert path.stat().st_ino == before
    lines.close()


def test_filter_passes_an_invalid_line_as_an_empty_row(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"n": 0}\nnonsense\n[1]\n')
    rows: list[tuple[int, dict[str, Any]]] = []
    lines = JsonLines(path)

    lines.filter_rows(lambda number, row: bool(rows.append((number, row))) or number == 1)

    assert rows == [(0, {"n": 0}), (1, {}), (2, {})]
    assert path.read_text() == "nonsense\n"
    lines.close()


# -- reading ---------------------------------------------------------------------------------------------


def test_read_jsonl_skips_an_incomplete_last_line(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"n": 0}\n{"n": 1')

    assert read_jsonl(path) == [{"n": 0}]


@pytest.mark.parametrize("line", ["nonsense", '{"a": NaN}', '{"a": -Infinity}', "[1]", ""])
def test_read_jsonl_reports_the_number_of_an_invalid_line(path: Path, line: str) -> None:
    path.parent.mkdir()
    path.write_text(f'{{"n": 0}}\n{line}\n{{"n": 1}}\n')

    with pytest.raises(ValueError, match="metrics.jsonl, line 2: "):
        read_jsonl(path)
