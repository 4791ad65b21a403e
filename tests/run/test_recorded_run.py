"""List of the outputs of a work directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hookbus._run.recorded_run import (
    append_output,
    find_list_problem,
    is_replaceable,
    parse_names,
    read_outputs,
    remove_output,
    write_outputs,
)

HEADER = b'"hookbus: files that runs have created in this directory"\n'


def test_appended_outputs_are_read_in_any_spelling(tmp_path: Path) -> None:
    names = {"logs/a.jsonl", 'a "quoted"\nname', "zwölf", os.fsdecode(b"\xff")}
    for name in names:
        append_output(tmp_path, name)

    assert read_outputs(tmp_path) == names
    assert (tmp_path / ".made").read_bytes().startswith(HEADER)


def test_output_is_durable_when_it_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    append_output(tmp_path, "a")
    append_output(tmp_path, "b")

    assert synced == [str(tmp_path / ".made"), str(tmp_path), str(tmp_path / ".made")]


@pytest.mark.parametrize("torn", [b'"logs/met', b'"a"\n"b', b"\0\0\0", b'"', b""])
def test_truncated_line_does_not_merge_with_the_next_one(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / ".made").write_bytes(torn)
    append_output(tmp_path, "new")

    assert read_outputs(tmp_path) == ({"a", "new"} if b"\n" in torn else {"new"})
    assert find_list_problem(tmp_path, contains_run=True) == ""


@pytest.mark.parametrize("content", [b"mine", b"mine\n", b'"a"\nmine\n', b'"a"\n[1]\n', b"\xff\n"])
def test_file_with_other_lines_is_foreign(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".made").write_bytes(content)

    assert "is not a list of outputs" in find_list_problem(tmp_path, contains_run=True)


@pytest.mark.parametrize("content", [b"", b'"a"\n', b'"a'])
def test_list_without_a_header_is_foreign_unless_the_directory_contains_a_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".made").write_bytes(content)

    assert "is not a list of outputs" in find_list_problem(tmp_path, contains_run=False)
    assert find_list_problem(tmp_path, contains_run=True) == ""


def test_link_is_neither_read_nor_written(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b'"a"\n')
    (tmp_path / ".made").symlink_to(tmp_path / "list")

    assert read_outputs(tmp_path) == set()
    with pytest.raises(OSError, match="symbolic link"):
        append_output(tmp_path, "b")
    assert (tmp_path / "list").read_bytes() == b'"a"\n'


def test_replaced_list_leaves_its_hard_links_unchanged(tmp_path: Path) -> None:
    append_output(tmp_path, "a")
    os.link(tmp_path / ".made", tmp_path / "backup")
    write_outputs(tmp_path, ["b"], "me")

    assert (tmp_path / ".made").read_bytes() == HEADER + b'"b"\n'
    assert (tmp_path / "backup").read_bytes() == HEADER + b'"a"\n'


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "a/../../b", "../a", "a\0b", ".hookbus.lock"])
def test_name_outside_of_the_directory_is_ignored(name: str) -> None:
    assert parse_names([name, "logs/a"]) == {"logs/a"}


def test_removed_output_is_a_file_or_a_directory_but_no_link(tmp_path: Path) -> None:
    (tmp_path / "x" / "images").mkdir(parents=True)
    (tmp_path / "x" / "images" / "1.png").touch()
    (tmp_path / "x" / "file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "new.txt").touch()
    (tmp_path / "x" / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "x" / "fifo")
    names = ("images", "file", "missing", "link", "link/new.txt", "fifo")

    assert [remove_output(tmp_path / "x", name) for name in names] == [True, True, True, False, False, False]
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["fifo", "link"]
    assert (tmp_path / "elsewhere" / "new.txt").exists()
    assert [is_replaceable(tmp_path / "x" / name) for name in ("missing", "link", "fifo")] == [True, False, False]
