"""The file of a history: appended rows, damaged lines, and files that others have changed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hookbus._run.history_file import MAX_PROBLEMS, HistoryFile, find_rows, format_row, read_rows
from hookbus.errors import HookbusError


def make_row(iteration: int, **values: float) -> dict[str, Any]:
    return {"kind": "epoch", "epoch": 1, "iteration": iteration, "step": 1, "seconds": 0.5, **values}


def read(path: Path) -> list[dict[str, Any]]:
    rows, problems = read_rows(path)
    assert problems == []
    return rows


def test_rows_are_appended_and_the_last_one_is_written_again(tmp_path: Path) -> None:
    file, rows = HistoryFile(tmp_path / "h", "r"), [make_row(1)]
    for row in (None, make_row(2, a=1.0), make_row(3)):
        rows += [] if row is None else [row]
        file.write(rows)
        inode = file.path.stat().st_ino
        assert read(file.path) == rows
        rows[-1]["longer"] = 2.0
        file.write(rows)
        assert (read(file.path), file.path.stat().st_ino) == (rows, inode)
        del rows[-1]["longer"]
        file.write(rows)
        assert file.path.read_bytes() == b"".join(map(format_row, rows))


@pytest.mark.parametrize("change", ["removed", "changed"])
def test_file_that_was_changed_is_replaced(change: str, tmp_path: Path) -> None:
    file, rows = HistoryFile(tmp_path / "h", "r"), [make_row(1)]
    file.write(rows)
    file.path.unlink() if change == "removed" else file.path.write_text("x")
    rows.append(make_row(2))
    file.write(rows)
    assert read(file.path) == rows


def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    file, rows = HistoryFile(tmp_path / "h", "r"), [make_row(1)]
    file.write(rows)
    file.path.rename(tmp_path / "other")
    file.path.symlink_to(tmp_path / "other")
    content = file.path.read_bytes()
    file.write([*rows, make_row(2)])
    assert (tmp_path / "other").read_bytes() == content


def test_values_that_json_numbers_cannot_express_are_restored(tmp_path: Path) -> None:
    row = make_row(1, a=math.inf, b=-math.inf, c=math.nan, d=0.1, e=1e300)
    HistoryFile(tmp_path / "h", "r").write([row])
    assert json.loads((tmp_path / "h").read_text())["c"] == "nan"
    (restored,) = read(tmp_path / "h")
    assert math.isnan(restored.pop("c"))
    del row["c"]
    assert restored == row


COUNTED = '{"kind": "end", "epoch": 1, "iteration": 1, "step": 1, "seconds": 1.0'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "invalid JSON"),
        ("[]", "expected an object, got list"),
        ("{}", "`kind` must be one of epoch, validation, test, end, got None"),
        ('{"kind": "end", "epoch": 1, "iteration": -1, "step": 1}', "`iteration` must be an integer from 0 to "),
        ('{"kind": "end", "epoch": 1, "iteration": 1, "step": true}', "`step` must be an integer from 0 to "),
        ('{"kind": "end", "epoch": 1, "iteration": 1, "step": 1}', "`seconds` must be a number, got None"),
        (f'{COUNTED}, "val/a": "b"}}', "'val/a' must be a number, got 'b'"),
        (f'{COUNTED}, "val/a": 1{"0" * 400}}}', "'val/a' must be a number, got '1000"),
        ("y" * (1 << 21), "invalid JSON"),
    ],
)
def test_damaged_line_is_reported_with_its_number(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(format_row(make_row(1)) + f"{line}\n".encode() + format_row(make_row(2)))
    rows, problems = read_rows(path)
    assert [row["iteration"] for row in rows] == [1, 2]
    assert problems[0].startswith(f"{path}:2: ")
    assert message in problems[0]


def test_number_of_messages_is_limited_and_the_line_of_a_killed_process_has_none(tmp_path: Path) -> None:
    (tmp_path / "h").write_bytes(b"x\n" * 15 + b'{"kind"')
    rows, problems = read_rows(tmp_path / "h")
    assert (rows, len(problems), problems[-1]) == ([], MAX_PROBLEMS + 1, f"{tmp_path / 'h'}: 5 more lines are damaged.")


def test_first_directory_of_the_run_with_a_history_counts(tmp_path: Path) -> None:
    for name, iteration in (("a", 1), ("b", 2), ("c", 3)):
        (tmp_path / name).mkdir()
        HistoryFile(tmp_path / name / "history.jsonl", "r").write([make_row(iteration)])
    (tmp_path / "d" / "history.jsonl").mkdir(parents=True)
    directories = [tmp_path / name for name in ("empty", "a", "b", "c")]
    rows, _ = find_rows(directories, lambda directory: directory.name != "a")
    assert rows == [make_row(2)]
    assert find_rows([tmp_path / "d"], lambda _: True)[1] == [
        f"{tmp_path / 'd' / 'history.jsonl'}: the history cannot be read: is a directory."
    ]
    with pytest.raises(HookbusError, match="is a directory"):
        read_rows(tmp_path / "d" / "history.jsonl")
