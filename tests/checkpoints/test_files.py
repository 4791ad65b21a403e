from __future__ import annotations

import builtins
import json
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus.checkpoints import files
from hookbus.checkpoints.files import (
    commit,
    hash_file,
    is_of,
    link,
    newest_first,
    read_sidecar,
    remove,
    remove_leftovers,
    verify,
    write_json,
)
from hookbus.errors import CheckpointDamaged, CheckpointError
from tests.dying import deaths, in_child

RUN = "me"
OLD, NEW = b"old " * 50, b"newer " * 60


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def put(path: Path, content: bytes, generation: int = 1) -> files.Sidecar:
    """Commit in two pieces."""

    def write(file: IO[bytes]) -> None:
        file.write(content[:7])
        file.write(memoryview(content)[7:])

    return commit(path, write, generation, RUN)


def hidden(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read_check(path: Path) -> str:
    """The hash that a sidecar has of its other fields."""
    fields = json.loads((path.parent / f"{path.name}.json").read_text())
    del fields["check"]
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())


class TestCommit:
    def test_leaves_the_file_and_its_sidecar_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "x.pth"
        sidecar = put(path, NEW, generation=7)

        assert path.read_bytes() == NEW
        assert names(path.parent) == ["x.pth", "x.pth.json"]
        assert json.loads((path.parent / "x.pth.json").read_text()) == {
            "name": "x.pth",
            "size": len(NEW),
            "hash": xxhash.xxh3_128_hexdigest(NEW),
            "generation": 7,
            "previous": [],
            "run": RUN,
            "check": read_check(path),
        }
        assert read_sidecar(path) == sidecar == verify(path)

    def test_the_sidecar_names_the_run_and_so_does_that_of_another_name(self, tmp_path: Path) -> None:
        path, other = tmp_path / "x.pth", tmp_path / "last.pth"
        commit(path, lambda file: file.write(NEW), 1, "me")
        link(path, other)

        assert [is_of(each, run) for each in (path, other) for run in ("me", "you")] == [True, False] * 2
        assert not is_of(tmp_path / "missing.pth", "")

    def test_one_that_names_no_run_is_read_as_well(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"
        put(path, NEW, generation=7)
        fields = json.loads((tmp_path / "x.pth.json").read_text())
        del fields["run"], fields["check"]
        digest = xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())
        (tmp_path / "x.pth.json").write_text(json.dumps({**fields, "check": digest}))

        assert verify(path).generation == 7
        assert is_of(path, "")

    def test_without_a_generation_there_is_no_sidecar(self, tmp_path: Path) -> None:
        commit(tmp_path / "x.txt", lambda file: file.write(b"text"))

        assert names(tmp_path) == ["x.txt"]

    def test_replaces_an_older_file(self, tmp_path: Path) -> None:
        put(tmp_path / "x.pth", OLD, 1)
        put(tmp_path / "x.pth", NEW, 2)

        assert (tmp_path / "x.pth").read_bytes() == NEW
        assert verify(tmp_path / "x.pth").generation == 2
        assert names(tmp_path) == ["x.pth", "x.pth.json"]

    def test_a_failure_while_writing_changes_nothing(self, tmp_path: Path) -> None:
        put(tmp_path / "x.pth", OLD)

        def write(file: IO[bytes]) -> None:
            file.write(b"half")
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            commit(tmp_path / "x.pth", write, 2)
        assert names(tmp_path) == ["x.pth", "x.pth.json"]
        assert verify(tmp_path / "x.pth").generation == 1

    def test_a_file_that_is_in_its_place_is_not_called_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path / "x.pth", OLD)
        monkeypatch.setattr(os, "replace", _full_after(2, os.replace))
        put(tmp_path / "x.pth", NEW, 2)

        assert verify(tmp_path / "x.pth").generation == 2

    @pytest.mark.parametrize("limit", [0, 1, len(NEW) // 2, len(NEW) - 1, len(NEW)])
    def test_no_space_left_leaves_the_older_file_and_nothing_hidden(self, tmp_path: Path, limit: int) -> None:
        path = tmp_path / "x.pth"
        put(path, OLD)

        def write_too_much() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            with pytest.raises(OSError, match="File too large"):
                put(path, NEW * (2 if limit == len(NEW) else 1), 2)

        assert in_child(write_too_much) == 0
        assert (path.read_bytes(), verify(path).generation) == (OLD, 1)
        assert hidden(tmp_path) == []

    def test_the_order_is_one_that_a_loss_of_power_cannot_break(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "x.pth"
        put(path, OLD)
        trace = _traced(monkeypatch)
        put(path, NEW, 2)

        sidecar = ["open .tmp", "write .tmp", "fsync .tmp", "replace .tmp x.pth.json", "fsync dir"]
        assert trace == [
            "open .tmp",
            "write .tmp",
            "write .tmp",
            "fsync .tmp",
            *sidecar,
            "replace .tmp x.pth",
            "fsync dir",
            *sidecar,
        ]


def _full_after(calls: int, operation: Callable[..., Any]) -> Callable[..., Any]:
    done = iter(range(calls))

    def fill(*args: Any) -> Any:
        if next(done, None) is None:
            raise OSError(28, "No space left on device")
        return operation(*args)

    return fill


def _traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The file operations from here on, with the names of the files; what was written is on its way to the disk."""
    trace: list[str] = []

    def name(path: Any) -> str:
        text = Path(os.readlink(f"/proc/self/fd/{path}")) if isinstance(path, int) else Path(path)
        return "dir" if text.is_dir() else ".tmp" if text.name.startswith(".tmp-") else text.name

    def note(what: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            trace.append(" ".join([what, *map(name, args)]))
            return operation(*args, **kwargs)

        return noted

    real_open = builtins.open

    def open_noted(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = real_open(path, mode, *args, **kwargs)
        return _NotedFile(file, name(path), trace) if "w" in mode else file

    for operation in ("fsync", "replace", "link"):
        monkeypatch.setattr(os, operation, note(operation, getattr(os, operation)))
    monkeypatch.setattr(builtins, "open", open_noted)
    return trace


class _NotedFile:
    def __init__(self, file: Any, name: str, trace: list[str]) -> None:
        self._file, self._name, self._trace = file, name, trace
        trace.append(f"open {name}")

    def write(self, data: Any) -> Any:
        self._trace.append(f"write {self._name}")
        return self._file.write(data)

    def __enter__(self) -> _NotedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class TestLink:
    def test_gives_a_second_name_to_the_same_bytes(self, tmp_path: Path) -> None:
        put(tmp_path / "epoch_1.pth", NEW, 3)
        link(tmp_path / "epoch_1.pth", tmp_path / "last.pth")

        assert (tmp_path / "last.pth").samefile(tmp_path / "epoch_1.pth")
        assert verify(tmp_path / "last.pth") == files.Sidecar(
            "last.pth", len(NEW), xxhash.xxh3_128_hexdigest(NEW), generation=3, run=RUN
        )
        assert hidden(tmp_path) == []

    def test_replaces_what_had_the_name(self, tmp_path: Path) -> None:
        put(tmp_path / "last.pth", OLD, 1)
        put(tmp_path / "epoch_2.pth", NEW, 2)
        link(tmp_path / "epoch_2.pth", tmp_path / "last.pth")
        link(tmp_path / "epoch_2.pth", tmp_path / "last.pth")

        assert (verify(tmp_path / "last.pth").generation, (tmp_path / "last.pth").read_bytes()) == (2, NEW)
        assert names(tmp_path) == ["epoch_2.pth", "epoch_2.pth.json", "last.pth", "last.pth.json"]

    def test_the_second_name_stays_when_the_first_is_removed_or_written_anew(self, tmp_path: Path) -> None:
        put(tmp_path / "a.pth", OLD, 1)
        link(tmp_path / "a.pth", tmp_path / "best.pth")
        put(tmp_path / "a.pth", NEW, 2)
        assert (tmp_path / "best.pth").read_bytes() == OLD

        remove(tmp_path / "a.pth")
        assert names(tmp_path) == ["best.pth", "best.pth.json"]
        assert verify(tmp_path / "best.pth").generation == 1

    def test_copies_where_the_file_system_has_no_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(tmp_path / "a.pth", NEW, 1)
        monkeypatch.setattr(os, "link", _full_after(0, os.link))
        trace = _traced(monkeypatch)
        link(tmp_path / "a.pth", tmp_path / "last.pth")

        assert (tmp_path / "last.pth").read_bytes() == NEW
        assert not (tmp_path / "last.pth").samefile(tmp_path / "a.pth")
        assert verify(tmp_path / "last.pth").generation == 1
        assert trace.index("fsync .tmp") < trace.index("replace .tmp last.pth")

    def test_what_has_no_sidecar_gets_no_second_name(self, tmp_path: Path) -> None:
        (tmp_path / "a.pth").write_bytes(OLD)

        with pytest.raises(CheckpointError, match="a.pth: it has no sidecar, so it cannot be given the name last.pth"):
            link(tmp_path / "a.pth", tmp_path / "last.pth")
        assert names(tmp_path) == ["a.pth"]


class TestDeath:
    """Whenever the process dies, a file under its final name is whole, and the older or the newer one is there."""

    @staticmethod
    def whole(path: Path, *contents: bytes) -> None:
        content = path.read_bytes() if path.exists() else None
        assert content in (contents or (None,)), f"neither the older nor the newer content: {content!r}"
        if content is not None:
            assert verify(path).hash == xxhash.xxh3_128_hexdigest(content)

    def test_in_the_first_commit(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"

        def look_and_clear() -> None:
            if path.exists():
                self.whole(path, NEW)
            assert newest_first(tmp_path) in ([], [path])
            for each in tmp_path.iterdir():
                each.unlink()

        assert deaths(lambda: put(path, NEW), look_and_clear) >= 12

    @pytest.mark.parametrize("with_links", [True, False])
    @pytest.mark.parametrize("by", ["commit", "link"])
    def test_while_a_file_is_replaced(self, tmp_path: Path, by: str, with_links: bool) -> None:
        path, source = tmp_path / "last.pth", tmp_path / "epoch_2.pth"
        put(source, NEW, 2)
        put(path, OLD, 1)

        def replace() -> None:
            if not with_links:
                os.link = _full_after(0, os.link)
            put(path, NEW, 2) if by == "commit" else link(source, path)

        def look_and_go_back() -> None:
            self.whole(path, OLD, NEW)
            self.whole(source, NEW)
            assert newest_first(tmp_path)[0].read_bytes() == NEW, "the newest file goes back to an older one"
            put(path, OLD, 1)
            remove_leftovers(tmp_path, RUN)
            assert hidden(tmp_path) == []

        assert deaths(replace, look_and_go_back) >= 12

    def test_while_an_old_file_is_replaced_by_one_newer_than_all(self, tmp_path: Path) -> None:
        best, newest = tmp_path / "best.pth", tmp_path / "epoch_8.pth"
        put(best, OLD, 6)
        put(newest, b"newest", 8)
        firsts: set[str] = set()

        def look_and_go_back() -> None:
            first = newest_first(tmp_path)[0]
            firsts.add(first.name)
            assert verify(first).generation == (9 if best.read_bytes() == NEW else 8)
            put(best, OLD, 6)

        assert deaths(lambda: put(best, NEW, 9), look_and_go_back) >= 12
        assert firsts == {"best.pth", "epoch_8.pth"}

    def test_again_and_again_without_one_replacement_coming_to_its_end(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"
        contents = [f"content {i} ".encode() * 20 for i in range(100)]
        put(path, contents[0], 0)
        there, turn = [contents[0]], 0

        def next_one() -> None:
            put(path, contents[turn], turn)

        def look() -> None:
            nonlocal turn
            content = path.read_bytes()
            assert content in (there[-1], contents[turn])
            there.append(content)
            assert verify(path).generation == contents.index(content)
            turn += 1

        assert deaths(next_one, look) >= 12

    def test_a_file_whose_replacement_was_cut_off_can_be_given_a_second_name(self, tmp_path: Path) -> None:
        path, best = tmp_path / "x.pth", tmp_path / "best.pth"
        put(path, OLD, 1)

        def look_and_go_back() -> None:
            link(path, best)
            self.whole(best, OLD, NEW)
            remove(best)
            put(path, OLD, 1)

        assert deaths(lambda: put(path, NEW, 2), look_and_go_back) >= 12

    def test_while_a_file_is_removed(self, tmp_path: Path) -> None:
        kept, gone = tmp_path / "kept.pth", tmp_path / "gone.pth"
        put(kept, NEW, 2)
        put(gone, OLD, 1)

        def look_and_go_back() -> None:
            assert newest_first(tmp_path)[0] == kept
            if gone.exists():
                self.whole(gone, OLD)  # its sidecar included: nobody would know whose it is
            remove_leftovers(tmp_path, RUN)
            put(gone, OLD, 1)

        assert deaths(lambda: remove(gone), look_and_go_back) == 3

    def test_leaves_hidden_files_that_are_cleared_away_later(self, tmp_path: Path) -> None:
        left: set[int] = set()

        def look() -> None:
            left.add(len(hidden(tmp_path)))
            remove_leftovers(tmp_path, RUN)
            assert hidden(tmp_path) == []

        deaths(lambda: put(tmp_path / "x.pth", NEW), look)
        assert left == {0, 1, 2}
        remove_leftovers(tmp_path / "not there", RUN)

    def test_leaves_no_hidden_file_without_the_id_of_the_run(self, tmp_path: Path) -> None:
        """Every operation on a checkpoint file names its owner in the temporary name."""

        def save() -> None:
            put(tmp_path / "epoch_1.pth", NEW)
            link(tmp_path / "epoch_1.pth", tmp_path / "last.pth")
            remove(tmp_path / "epoch_1.pth")

        def look() -> None:
            assert all(name.startswith(f".tmp-{RUN}-") for name in hidden(tmp_path))
            for each in tmp_path.iterdir():
                each.unlink()

        assert deaths(save, look) >= 20


class TestRemoveLeftovers:
    @pytest.mark.parametrize(
        "name", [".tmp-x.pth", ".tmp-notes", f".tmp-{'0' * 32}", f".tmp-you-{'0' * 32}", f".tmp-{RUN}-notes", ".tmp-"]
    )
    @pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
    def test_keeps_what_the_run_did_not_create(self, tmp_path: Path, name: str, kind: str) -> None:
        path = tmp_path / "work" / name
        target = path
        path.parent.mkdir()
        if kind == "symlink":
            target = tmp_path / "target"
            path.symlink_to(target)
        if kind == "directory":
            path.mkdir()
            target = path / "thesis.tex"
        target.write_text("years of work")
        for run in (RUN, "", "*", "[m]e"):
            remove_leftovers(path.parent, run)

        assert target.read_text() == "years of work"
        assert os.path.lexists(path)

    def test_removes_files_and_directories_of_the_run(self, tmp_path: Path) -> None:
        (tmp_path / files.temporary_name(RUN)).write_text("half")
        (tmp_path / files.temporary_name(RUN)).mkdir()
        remove_leftovers(tmp_path, RUN)

        assert list(tmp_path.iterdir()) == []


class TestVerify:
    def test_any_flipped_byte_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"
        put(path, NEW)
        for i in range(len(NEW)):
            for bit in (0x01, 0x80):
                path.write_bytes(NEW[:i] + bytes([NEW[i] ^ bit]) + NEW[i + 1 :])
                with pytest.raises(CheckpointDamaged, match="x.pth: damaged: its bytes are not those that were saved."):
                    verify(path)

    @settings(max_examples=60, deadline=None)
    @given(begin=st.integers(0, len(NEW)), cut=st.integers(0, len(NEW)), more=st.binary(max_size=20))
    def test_anything_cut_out_or_put_in_is_noticed(
        self, tmp_path_factory: pytest.TempPathFactory, begin: int, cut: int, more: bytes
    ) -> None:
        path = tmp_path_factory.mktemp("verify") / "x.pth"
        put(path, NEW)
        changed = NEW[:begin] + more + NEW[begin + cut :]
        path.write_bytes(changed)

        if changed == NEW:
            assert verify(path).size == len(NEW)
        else:
            with pytest.raises(CheckpointDamaged, match="damaged"):
                verify(path)

    def test_another_size_is_told(self, tmp_path: Path) -> None:
        put(tmp_path / "x.pth", NEW)
        (tmp_path / "x.pth").write_bytes(NEW[:100])

        with pytest.raises(CheckpointDamaged, match="x.pth: damaged: 100 bytes, not 360."):
            verify(tmp_path / "x.pth")

    def test_a_file_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="x.pth: there is no such file."):
            verify(tmp_path / "x.pth")

    def test_whatever_befalls_a_sidecar_damaged_bytes_are_never_vouched_for(self, tmp_path: Path) -> None:
        path, sidecar = tmp_path / "x.pth", tmp_path / "x.pth.json"
        put(path, NEW)
        text = sidecar.read_bytes()
        path.write_bytes(OLD)
        for i in range(len(text)):
            for changed in (text[:i], text[:i] + text[i + 1 :], text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :]):
                sidecar.write_bytes(changed)
                with pytest.raises(CheckpointError, match="damaged|cannot be verified"):
                    verify(path)

    def test_a_flipped_or_cut_sidecar_is_not_read_as_another_one(self, tmp_path: Path) -> None:
        path, sidecar = tmp_path / "x.pth", tmp_path / "x.pth.json"
        put(path, NEW, generation=3)
        text, said = sidecar.read_bytes(), read_sidecar(path)
        for i in range(len(text)):
            for changed in (text[:i], text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :]):
                sidecar.write_bytes(changed)
                assert read_sidecar(path) in (None, said)

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", '"x"', "3", "\xff", '{"name": "x", "size": null}', '{"previous": 3}']
    )
    def test_a_sidecar_that_is_none_is_not_read_as_one(self, tmp_path: Path, text: str) -> None:
        put(tmp_path / "x.pth", NEW)
        (tmp_path / "x.pth.json").write_bytes(text.encode("latin-1"))

        assert read_sidecar(tmp_path / "x.pth") is None
        assert newest_first(tmp_path) == []
        with pytest.raises(CheckpointError, match="x.pth.json is missing or damaged, so it cannot be verified"):
            verify(tmp_path / "x.pth")

    def test_the_hash_is_xxh3_of_the_whole_file(self, tmp_path: Path) -> None:
        content = os.urandom((1 << 20) + 17)
        (tmp_path / "x").write_bytes(content)

        assert hash_file(tmp_path / "x") == xxhash.xxh3_128_hexdigest(content)


class TestNewestFirst:
    def test_goes_by_generation_not_by_name_or_time(self, tmp_path: Path) -> None:
        for name, generation in [("epoch_10.pth", 10), ("epoch_9.pth", 9), ("best.pth", 9), ("epoch_2.pth", 2)]:
            put(tmp_path / name, NEW, generation)
        os.utime(tmp_path / "epoch_10.pth", (0, 0))

        assert [path.name for path in newest_first(tmp_path)] == [
            "epoch_10.pth",
            "best.pth",
            "epoch_9.pth",
            "epoch_2.pth",
        ]

    def test_passes_over_hidden_files_other_names_and_those_without_sidecar(self, tmp_path: Path) -> None:
        put(tmp_path / ".hidden.pth", NEW)
        put(tmp_path / "x.txt", NEW)
        (tmp_path / "bare.pth").write_bytes(NEW)

        assert newest_first(tmp_path) == []
        assert [path.name for path in newest_first(tmp_path, "*.txt")] == ["x.txt"]
        assert newest_first(tmp_path / "not there") == []


class TestWriteJson:
    def strict(self, path: Path) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(path.read_text(), parse_constant=refuse)

    def test_numbers_of_every_kind_are_plain_and_what_json_lacks_is_null(self, tmp_path: Path) -> None:
        value = {
            "float": 0.5,
            "nan": math.nan,
            "inf": [math.inf, -math.inf, torch.tensor(math.nan), np.float32("inf")],
            "numpy": (np.float32(0.5), np.int64(3), np.bool_(True), np.array(2.0)),
            "torch": {"float": torch.tensor(0.25), "bool": torch.tensor(True)},
            "plain": [None, True, 3, "é"],
            3: Path("a/b"),
        }
        write_json(tmp_path / "x.json", value)

        assert self.strict(tmp_path / "x.json") == {
            "float": 0.5,
            "nan": None,
            "inf": [None, None, None, None],
            "numpy": [0.5, 3, True, 2.0],
            "torch": {"float": 0.25, "bool": True},
            "plain": [None, True, 3, "é"],
            "3": "a/b",
        }

    def test_a_reader_sees_the_older_or_the_newer_text(self, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        write_json(path, {"old": 1})

        def look_and_go_back() -> None:
            assert self.strict(path) in ({"old": 1}, {"new": 2})
            write_json(path, {"old": 1})

        assert deaths(lambda: write_json(path, {"new": 2}), look_and_go_back) >= 5
