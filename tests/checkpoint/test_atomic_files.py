"""Tests of atomic file writes, links, removal and verification."""

from __future__ import annotations

import builtins
import errno
import json
import math
import os
import resource
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus.checkpoint import atomic_files, sidecars
from hookbus.checkpoint.atomic_files import (
    add_link,
    atomic_write,
    commit_file,
    remove,
    remove_orphaned_sidecars,
    remove_temporary_files,
    write_json,
)
from hookbus.checkpoint.sidecars import hash_file, is_available, list_newest_first, read_sidecar, verify, written_by
from hookbus.errors import CheckpointCorruptedError, CheckpointError
from tests.crashes import kill_at_each_operation, run_in_fork
from tests.entries import KINDS, occupy

RUN = "me"
OLD, NEW = b"old " * 50, b"newer " * 60


@pytest.fixture(autouse=True)
def _disable_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: it only matters after a power failure, and takes most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def commit_in_two_writes(path: Path, content: bytes, generation: int = 1) -> sidecars.Sidecar:
    """Commit a file with two writes."""

    def write(file: IO[bytes]) -> None:
        file.write(content[:7])
        file.write(memoryview(content)[7:])

    return atomic_write(path, write, generation, RUN)


def refuse(path: Path, *_: Path, number: int = errno.EROFS) -> None:
    raise OSError(number, os.strerror(number), str(path))


def get_hidden_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def get_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def compute_check(path: Path) -> str:
    """Compute the checksum of the fields of a sidecar."""
    fields = json.loads((path.parent / f"{path.name}.json").read_text())
    del fields["check"]
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())


class TestAtomicWrite:
    def test_atomic_write_writes_the_file_and_its_sidecar_only(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "x.pth"
        sidecar = commit_in_two_writes(path, NEW, generation=7)

        assert path.read_bytes() == NEW
        assert get_names(path.parent) == ["x.pth", "x.pth.json"]
        assert json.loads((path.parent / "x.pth.json").read_text()) == {
            "name": "x.pth",
            "size": len(NEW),
            "hash": xxhash.xxh3_128_hexdigest(NEW),
            "generation": 7,
            "previous": [],
            "run": RUN,
            "check": compute_check(path),
        }
        assert read_sidecar(path) == sidecar == verify(path)

    def test_sidecars_of_the_file_and_its_link_contain_the_run_id(self, tmp_path: Path) -> None:
        path, other = tmp_path / "x.pth", tmp_path / "last.pth"
        atomic_write(path, lambda file: file.write(NEW), 1, "me")
        add_link(path, other)

        assert [written_by(file, run) for file in (path, other) for run in ("me", "you")] == [True, False] * 2
        assert not written_by(tmp_path / "missing.pth", "")

    def test_sidecar_without_a_run_id_is_valid(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"
        commit_in_two_writes(path, NEW, generation=7)
        fields = json.loads((tmp_path / "x.pth.json").read_text())
        del fields["run"], fields["check"]
        digest = xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())
        (tmp_path / "x.pth.json").write_text(json.dumps({**fields, "check": digest}))

        assert verify(path).generation == 7
        assert written_by(path, "")

    def test_file_without_a_generation_has_no_sidecar(self, tmp_path: Path) -> None:
        atomic_write(tmp_path / "x.txt", lambda file: file.write(b"content"))

        assert get_names(tmp_path) == ["x.txt"]

    def test_atomic_write_replaces_an_existing_file(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD, 1)
        commit_in_two_writes(tmp_path / "x.pth", NEW, 2)

        assert (tmp_path / "x.pth").read_bytes() == NEW
        assert verify(tmp_path / "x.pth").generation == 2
        assert get_names(tmp_path) == ["x.pth", "x.pth.json"]

    def test_failed_write_leaves_the_existing_file_unchanged(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD)

        def write(file: IO[bytes]) -> None:
            file.write(b"half")
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            atomic_write(tmp_path / "x.pth", write, 2)
        assert get_names(tmp_path) == ["x.pth", "x.pth.json"]
        assert verify(tmp_path / "x.pth").generation == 1

    def test_failure_after_the_rename_is_ignored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD)
        monkeypatch.setattr(os, "replace", fail_after(2, os.replace))
        commit_in_two_writes(tmp_path / "x.pth", NEW, 2)

        assert verify(tmp_path / "x.pth").generation == 2

    @pytest.mark.parametrize("limit", [0, 1, len(NEW) // 2, len(NEW) - 1, len(NEW)])
    def test_full_disk_leaves_the_existing_file_and_no_temporary_files(self, tmp_path: Path, limit: int) -> None:
        path = tmp_path / "x.pth"
        commit_in_two_writes(path, OLD)

        def write_too_much() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            with pytest.raises(OSError, match="File too large"):
                commit_in_two_writes(path, NEW * (2 if limit == len(NEW) else 1), 2)

        assert run_in_fork(write_too_much) == 0
        assert (path.read_bytes(), verify(path).generation) == (OLD, 1)
        assert get_hidden_names(tmp_path) == []

    def test_error_of_the_cleanup_does_not_hide_that_of_the_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "replace", refuse)
        monkeypatch.setattr(os, "unlink", partial(refuse, number=errno.EIO))

        with pytest.raises(OSError, match="Read-only file system"):
            commit_in_two_writes(tmp_path / "a.pth", NEW)
        monkeypatch.undo()
        assert len(get_hidden_names(tmp_path)) == 2  # of the file and of its sidecar
        remove_temporary_files(tmp_path, RUN)
        assert list(tmp_path.iterdir()) == []

    def test_error_of_the_cleanup_does_not_fail_a_complete_write(self, tmp_path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "unlink", refuse)
            entry = commit_in_two_writes(tmp_path / "a.pth", NEW)
        assert entry == verify(tmp_path / "a.pth")

    def test_order_of_operations_is_safe_against_power_failures(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "x.pth"
        commit_in_two_writes(path, OLD)
        trace = trace_operations(monkeypatch)
        commit_in_two_writes(path, NEW, 2)

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


def test_complete_file_is_durable_before_and_after_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, path = tmp_path / ".tmp-1", tmp_path / "x.csv"
    temporary.write_bytes(NEW), path.write_bytes(OLD)
    trace = trace_operations(monkeypatch)
    commit_file(temporary, path)
    assert trace == ["fsync .tmp", "replace .tmp x.csv", "fsync dir"]
    assert path.read_bytes() == NEW
    assert [*tmp_path.iterdir()] == [path]


def fail_after(calls: int, operation: Callable[..., Any]) -> Callable[..., Any]:
    done = iter(range(calls))

    def fill(*args: Any) -> Any:
        if next(done, None) is None:
            raise OSError(28, "No space left on device")
        return operation(*args)

    return fill


def refuse_link(*_: object) -> None:
    """Fail like a file system without hard links."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


def trace_operations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record all subsequent file operations with the names of the atomic_files."""
    trace: list[str] = []

    def get_name(path: Any) -> str:
        resolved = Path(os.readlink(f"/proc/self/fd/{path}")) if isinstance(path, int) else Path(path)
        return "dir" if resolved.is_dir() else ".tmp" if resolved.name.startswith(".tmp-") else resolved.name

    def wrap(label: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any, **kwargs: Any) -> Any:
            trace.append(" ".join([label, *map(get_name, args)]))
            return operation(*args, **kwargs)

        return traced

    real_open = builtins.open

    def traced_open(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = real_open(path, mode, *args, **kwargs)
        return _TracedFile(file, get_name(path), trace) if "w" in mode else file

    for operation in ("fsync", "replace", "link"):
        monkeypatch.setattr(os, operation, wrap(operation, getattr(os, operation)))
    monkeypatch.setattr(builtins, "open", traced_open)
    return trace


class _TracedFile:
    def __init__(self, file: Any, name: str, trace: list[str]) -> None:
        self._file, self._name, self._trace = file, name, trace
        trace.append(f"open {name}")

    def write(self, data: Any) -> Any:
        self._trace.append(f"write {self._name}")
        return self._file.write(data)

    def __enter__(self) -> _TracedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class TestAddLink:
    def test_link_is_the_same_file(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "epoch_1.pth", NEW, 3)
        add_link(tmp_path / "epoch_1.pth", tmp_path / "last.pth")

        assert (tmp_path / "last.pth").samefile(tmp_path / "epoch_1.pth")
        assert verify(tmp_path / "last.pth") == sidecars.Sidecar(
            "last.pth", len(NEW), xxhash.xxh3_128_hexdigest(NEW), generation=3, run=RUN
        )
        assert get_hidden_names(tmp_path) == []

    def test_link_replaces_an_existing_file(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "last.pth", OLD, 1)
        commit_in_two_writes(tmp_path / "epoch_2.pth", NEW, 2)
        add_link(tmp_path / "epoch_2.pth", tmp_path / "last.pth")
        add_link(tmp_path / "epoch_2.pth", tmp_path / "last.pth")

        assert (verify(tmp_path / "last.pth").generation, (tmp_path / "last.pth").read_bytes()) == (2, NEW)
        assert get_names(tmp_path) == ["epoch_2.pth", "epoch_2.pth.json", "last.pth", "last.pth.json"]

    def test_link_is_kept_when_the_source_is_removed_or_replaced(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "a.pth", OLD, 1)
        add_link(tmp_path / "a.pth", tmp_path / "best.pth")
        commit_in_two_writes(tmp_path / "a.pth", NEW, 2)
        assert (tmp_path / "best.pth").read_bytes() == OLD

        remove(tmp_path / "a.pth")
        assert get_names(tmp_path) == ["best.pth", "best.pth.json"]
        assert verify(tmp_path / "best.pth").generation == 1

    def test_link_is_a_copy_if_hard_links_are_not_supported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit_in_two_writes(tmp_path / "a.pth", NEW, 1)

        monkeypatch.setattr(os, "link", refuse_link)
        trace = trace_operations(monkeypatch)
        add_link(tmp_path / "a.pth", tmp_path / "last.pth")

        assert (tmp_path / "last.pth").read_bytes() == NEW
        assert not (tmp_path / "last.pth").samefile(tmp_path / "a.pth")
        assert verify(tmp_path / "last.pth").generation == 1
        assert trace.index("fsync .tmp") < trace.index("replace .tmp last.pth")

    def test_link_to_a_file_without_a_sidecar_raises(self, tmp_path: Path) -> None:
        (tmp_path / "a.pth").write_bytes(OLD)

        with pytest.raises(
            CheckpointError, match="a.pth.json is missing or corrupted, so the link last.pth cannot be created"
        ):
            add_link(tmp_path / "a.pth", tmp_path / "last.pth")
        assert get_names(tmp_path) == ["a.pth"]


class TestKill:
    """After a kill at any file operation, the final path contains the complete old or the complete new file."""

    @staticmethod
    def check_complete(path: Path, *contents: bytes) -> None:
        content = path.read_bytes() if path.exists() else None
        assert content in (contents or (None,)), f"neither the old nor the new content: {content!r}"
        if content is not None:
            assert verify(path).hash == xxhash.xxh3_128_hexdigest(content)

    @pytest.mark.slow
    def test_kill_during_the_first_atomic_write(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"

        def check_and_clear() -> None:
            if path.exists():
                self.check_complete(path, NEW)
            assert list_newest_first(tmp_path) in ([], [path])
            for file in tmp_path.iterdir():
                file.unlink()

        assert kill_at_each_operation(lambda: commit_in_two_writes(path, NEW), check_and_clear) >= 12

    @pytest.mark.slow
    @pytest.mark.parametrize("with_links", [True, False])
    @pytest.mark.parametrize("by", ["commit", "link"])
    def test_kill_during_a_replacement(self, tmp_path: Path, by: str, with_links: bool) -> None:
        path, source = tmp_path / "last.pth", tmp_path / "epoch_2.pth"
        commit_in_two_writes(source, NEW, 2)
        commit_in_two_writes(path, OLD, 1)

        def replace() -> None:
            if not with_links:
                os.link = refuse_link
            commit_in_two_writes(path, NEW, 2) if by == "commit" else add_link(source, path)

        def check_and_reset() -> None:
            self.check_complete(path, OLD, NEW)
            self.check_complete(source, NEW)
            assert list_newest_first(tmp_path)[0].read_bytes() == NEW, "the newest file became an older one"
            commit_in_two_writes(path, OLD, 1)
            remove_temporary_files(tmp_path, RUN)
            assert get_hidden_names(tmp_path) == []

        assert kill_at_each_operation(replace, check_and_reset) >= 12

    @pytest.mark.slow
    def test_kill_while_an_old_file_is_replaced_by_the_newest(self, tmp_path: Path) -> None:
        best, newest = tmp_path / "best.pth", tmp_path / "epoch_8.pth"
        commit_in_two_writes(best, OLD, 6)
        commit_in_two_writes(newest, b"newest", 8)
        firsts: set[str] = set()

        def check_and_reset() -> None:
            first = list_newest_first(tmp_path)[0]
            firsts.add(first.name)
            assert verify(first).generation == (9 if best.read_bytes() == NEW else 8)
            commit_in_two_writes(best, OLD, 6)

        assert kill_at_each_operation(lambda: commit_in_two_writes(best, NEW, 9), check_and_reset) >= 12
        assert firsts == {"best.pth", "epoch_8.pth"}

    @pytest.mark.slow
    def test_repeated_kills_before_a_replacement_is_complete(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"
        contents = [f"content {i} ".encode() * 20 for i in range(100)]
        commit_in_two_writes(path, contents[0], 0)
        states, turn = [contents[0]], 0

        def commit_next() -> None:
            commit_in_two_writes(path, contents[turn], turn)

        def check() -> None:
            nonlocal turn
            content = path.read_bytes()
            assert content in (states[-1], contents[turn])
            states.append(content)
            assert verify(path).generation == contents.index(content)
            turn += 1

        assert kill_at_each_operation(commit_next, check) >= 12

    @pytest.mark.slow
    def test_file_with_an_interrupted_replacement_can_be_linked(self, tmp_path: Path) -> None:
        path, best = tmp_path / "x.pth", tmp_path / "best.pth"
        commit_in_two_writes(path, OLD, 1)

        def check_and_reset() -> None:
            add_link(path, best)
            self.check_complete(best, OLD, NEW)
            remove(best)
            commit_in_two_writes(path, OLD, 1)

        assert kill_at_each_operation(lambda: commit_in_two_writes(path, NEW, 2), check_and_reset) >= 12

    def test_kill_during_a_removal(self, tmp_path: Path) -> None:
        kept, gone = tmp_path / "kept.pth", tmp_path / "gone.pth"
        commit_in_two_writes(kept, NEW, 2)
        commit_in_two_writes(gone, OLD, 1)

        def check_and_reset() -> None:
            assert list_newest_first(tmp_path)[0] == kept
            if gone.exists():
                self.check_complete(gone, OLD)  # with its sidecar: a file without one has no owner
            is_gone = not gone.exists()
            remove_temporary_files(tmp_path, RUN)
            remove_orphaned_sidecars(tmp_path, RUN)
            remaining = [] if is_gone else ["gone.pth", "gone.pth.json"]
            assert get_names(tmp_path) == [*remaining, "kept.pth", "kept.pth.json"]
            commit_in_two_writes(gone, OLD, 1)

        # rename, fsync of the directory (open and fsync), removal of the sidecar, removal of the file, cleanup
        assert kill_at_each_operation(lambda: remove(gone), check_and_reset) == 6

    def test_file_whose_space_cannot_be_released_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit_in_two_writes(tmp_path / "a.pth", OLD)
        unlink = os.unlink
        monkeypatch.setattr(os, "unlink", lambda path: refuse(path) if path.name.startswith(".tmp-") else unlink(path))

        with pytest.raises(OSError, match="Read-only file system"):
            remove(tmp_path / "a.pth")
        monkeypatch.undo()
        remove_temporary_files(tmp_path, RUN)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    def test_temporary_files_of_a_killed_process_are_removed_later(self, tmp_path: Path) -> None:
        counts: set[int] = set()

        def check() -> None:
            counts.add(len(get_hidden_names(tmp_path)))
            remove_temporary_files(tmp_path, RUN)
            assert get_hidden_names(tmp_path) == []

        kill_at_each_operation(lambda: commit_in_two_writes(tmp_path / "x.pth", NEW), check)
        assert counts == {0, 1, 2}
        remove_temporary_files(tmp_path / "missing", RUN)

    @pytest.mark.slow
    def test_every_temporary_file_name_contains_the_run_id(self, tmp_path: Path) -> None:
        def save() -> None:
            commit_in_two_writes(tmp_path / "epoch_1.pth", NEW)
            add_link(tmp_path / "epoch_1.pth", tmp_path / "last.pth")
            remove(tmp_path / "epoch_1.pth")

        def check() -> None:
            assert all(name.startswith(f".tmp-{RUN}-") for name in get_hidden_names(tmp_path))
            for file in tmp_path.iterdir():
                file.unlink()

        assert kill_at_each_operation(save, check) >= 20


class TestRemoveTemporaryFiles:
    @pytest.mark.parametrize(
        "name", [".tmp-x.pth", ".tmp-notes", f".tmp-{'0' * 32}", f".tmp-you-{'0' * 32}", f".tmp-{RUN}-notes", ".tmp-"]
    )
    @pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
    def test_files_of_other_owners_are_kept(self, tmp_path: Path, name: str, kind: str) -> None:
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
            remove_temporary_files(path.parent, run)

        assert target.read_text() == "years of work"
        assert os.path.lexists(path)

    def test_files_and_directories_of_the_run_are_removed(self, tmp_path: Path) -> None:
        (tmp_path / atomic_files.make_temporary_name(RUN)).write_text("half")
        (tmp_path / atomic_files.make_temporary_name(RUN)).mkdir()
        remove_temporary_files(tmp_path, RUN)

        assert list(tmp_path.iterdir()) == []


def occupy_beside_target(path: Path, kind: str) -> None:
    """Create an entry that hookbus did not write, and the file that a link refers to."""
    target = path.parent / "target"
    target.write_text("years of work")
    occupy(path, kind, target)


def describe(directory: Path) -> dict[str, Any]:
    """Return the type, the identity and the content of each entry of a directory."""
    return {
        path.name: (
            os.lstat(path).st_mode,
            os.lstat(path).st_ino,
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in directory.iterdir()
    }


class TestOwnership:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["x.pth", "x.pth.json"])
    @pytest.mark.parametrize("method", ["write", "link"])
    def test_foreign_entry_is_neither_replaced_nor_followed(
        self, tmp_path: Path, method: str, name: str, kind: str
    ) -> None:
        source = tmp_path / "source.pth"
        commit_in_two_writes(source, NEW)
        occupy_beside_target(tmp_path / name, kind)
        before = describe(tmp_path)

        assert not is_available(tmp_path / "x.pth", RUN)
        publish = partial(commit_in_two_writes, content=NEW) if method == "write" else partial(add_link, source)
        with pytest.raises(FileExistsError, match=r"exists that this run did not write: .*x\.pth"):
            publish(tmp_path / "x.pth")
        assert describe(tmp_path) == before

    @pytest.mark.parametrize("kind", KINDS)
    def test_entry_that_replaced_a_file_of_the_run_is_foreign(self, tmp_path: Path, kind: str) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD)
        (tmp_path / "x.pth").unlink()
        occupy_beside_target(tmp_path / "x.pth", kind)

        assert not written_by(tmp_path / "x.pth", RUN)
        assert not is_available(tmp_path / "x.pth", RUN)

    @pytest.mark.parametrize(
        ("content", "is_own"),
        [(b"", True), (b"PK\3\4 half", True), (b"notes", False), (b"PK\3\4" + NEW, False)],
        ids=["empty", "truncated archive", "other content", "longer file"],
    )
    def test_file_of_another_size_is_foreign_unless_it_is_a_truncated_archive(
        self, tmp_path: Path, content: bytes, is_own: bool
    ) -> None:
        commit_in_two_writes(tmp_path / "x.pth", NEW)
        (tmp_path / "x.pth").write_bytes(content)

        assert written_by(tmp_path / "x.pth", RUN) == is_available(tmp_path / "x.pth", RUN) == is_own

    def test_complete_archive_of_another_size_is_foreign(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", NEW)
        with zipfile.ZipFile(tmp_path / "x.pth", "w") as archive:
            archive.writestr("x", "years")

        assert (tmp_path / "x.pth").stat().st_size < len(NEW)
        assert not written_by(tmp_path / "x.pth", RUN)

    def test_symlink_to_a_file_of_the_run_is_foreign(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD)
        (tmp_path / "x.pth").rename(tmp_path / "moved.pth")
        (tmp_path / "x.pth").symlink_to("moved.pth")

        assert not written_by(tmp_path / "x.pth", RUN)

    def test_name_is_available_to_the_run_of_its_sidecar_only(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD)
        commit_in_two_writes(tmp_path / "orphan.pth", OLD)
        (tmp_path / "orphan.pth").unlink()

        for name in ("x.pth", "orphan.pth"):
            assert [is_available(tmp_path / name, run) for run in (RUN, "you", "")] == [True, False, False]
        assert is_available(tmp_path / "new.pth", RUN)

    def test_hard_link_of_a_user_keeps_the_content_of_a_replaced_file(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD)
        os.link(tmp_path / "x.pth", tmp_path / "copy")
        commit_in_two_writes(tmp_path / "x.pth", NEW, 2)

        assert (tmp_path / "copy").read_bytes() == OLD


class TestUnreadableSidecar:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        commit_in_two_writes(tmp_path / "x.pth", OLD)
        return tmp_path / "x.pth"

    @pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE], ids=errno.errorcode.get)
    @pytest.mark.parametrize(
        "call",
        [
            partial(written_by, run=RUN),
            partial(is_available, run=RUN),
            remove,
            partial(commit_in_two_writes, content=NEW),
        ],
        ids=["written_by", "is_available", "remove", "write"],
    )
    def test_error_of_the_system_is_raised_and_changes_nothing(
        self, path: Path, call: Callable[[Path], object], number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.open

        def open_failing(name: Any, *arguments: Any, **options: Any) -> int:
            if str(name).endswith("x.pth.json"):
                raise OSError(number, os.strerror(number), str(name))
            return real(name, *arguments, **options)

        monkeypatch.setattr(os, "open", open_failing)
        with pytest.raises(OSError, match=os.strerror(number)):
            call(path)
        assert read_sidecar(path) is None  # for readers, which use an older checkpoint
        monkeypatch.undo()
        assert (get_names(path.parent), verify(path).generation) == (["x.pth", "x.pth.json"], 1)

    def test_sidecar_without_permission_is_foreign(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse_to_open(name: Any, *_: Any, **__: Any) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))

        monkeypatch.setattr(os, "open", refuse_to_open)
        assert (written_by(path, RUN), is_available(path, RUN)) == (False, False)


class TestRemoveOrphanedSidecars:
    def test_sidecars_of_the_run_without_a_file_are_removed(self, tmp_path: Path) -> None:
        for name in ("x.pth", "gone.pth", "model.safetensors"):
            commit_in_two_writes(tmp_path / name, OLD)
        (tmp_path / "gone.pth").unlink()
        (tmp_path / "model.safetensors").unlink()
        remove_orphaned_sidecars(tmp_path, RUN)

        assert get_names(tmp_path) == ["x.pth", "x.pth.json"]
        remove_orphaned_sidecars(tmp_path / "missing", RUN)

    @pytest.mark.parametrize("run", ["you", "", "*"])
    def test_sidecars_of_other_runs_are_kept(self, tmp_path: Path, run: str) -> None:
        commit_in_two_writes(tmp_path / "gone.pth", OLD)
        (tmp_path / "gone.pth").unlink()
        remove_orphaned_sidecars(tmp_path, run)

        assert get_names(tmp_path) == ["gone.pth.json"]

    @pytest.mark.parametrize("kind", KINDS)
    def test_entries_with_the_name_of_a_sidecar_are_kept(self, tmp_path: Path, kind: str) -> None:
        occupy_beside_target(tmp_path / "x.pth.json", kind)
        before = describe(tmp_path)
        remove_orphaned_sidecars(tmp_path, RUN)

        assert describe(tmp_path) == before

    def test_copies_of_sidecars_and_sidecars_of_links_are_kept(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", OLD)
        (tmp_path / "notes.json").write_bytes((tmp_path / "x.pth.json").read_bytes())
        (tmp_path / "x.pth").unlink()
        (tmp_path / "x.pth").symlink_to("nowhere")
        remove_orphaned_sidecars(tmp_path, RUN)

        assert get_names(tmp_path) == ["notes.json", "x.pth", "x.pth.json"]


class TestVerify:
    def test_any_flipped_bit_is_detected(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pth"
        commit_in_two_writes(path, NEW)
        for i in range(len(NEW)):
            for bit in (0x01, 0x80):
                path.write_bytes(NEW[:i] + bytes([NEW[i] ^ bit]) + NEW[i + 1 :])
                with pytest.raises(CheckpointCorruptedError, match="x.pth: corrupted: checksum mismatch."):
                    verify(path)

    @settings(max_examples=60, deadline=None)
    @given(begin=st.integers(0, len(NEW)), deleted=st.integers(0, len(NEW)), inserted=st.binary(max_size=20))
    def test_deleted_and_inserted_bytes_are_detected(
        self, tmp_path_factory: pytest.TempPathFactory, begin: int, deleted: int, inserted: bytes
    ) -> None:
        path = tmp_path_factory.mktemp("verify") / "x.pth"
        commit_in_two_writes(path, NEW)
        changed = NEW[:begin] + inserted + NEW[begin + deleted :]
        path.write_bytes(changed)

        if changed == NEW:
            assert verify(path).size == len(NEW)
        else:
            with pytest.raises(CheckpointCorruptedError, match="corrupted"):
                verify(path)

    def test_different_size_is_reported(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / "x.pth", NEW)
        (tmp_path / "x.pth").write_bytes(NEW[:100])

        with pytest.raises(CheckpointCorruptedError, match="x.pth: corrupted: expected 360 bytes, got 100."):
            verify(tmp_path / "x.pth")

    def test_escape_sequence_in_a_name_is_not_in_the_message(self, tmp_path: Path) -> None:
        path = tmp_path / "\x1b[31m.pth"
        for prepare in (path.touch, lambda: commit_in_two_writes(tmp_path / "x.pth", NEW)):
            with pytest.raises(CheckpointError) as raised:
                verify(path)
            assert str(raised.value).isprintable()
            prepare()
        with pytest.raises(CheckpointError) as raised:
            add_link(path, tmp_path / "last.pth")
        assert str(raised.value).isprintable()

    def test_missing_file_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="x.pth: file does not exist."):
            verify(tmp_path / "x.pth")

    @pytest.mark.slow
    def test_corrupted_file_and_sidecar_never_match(self, tmp_path: Path) -> None:
        path, sidecar = tmp_path / "x.pth", tmp_path / "x.pth.json"
        commit_in_two_writes(path, NEW)
        content = sidecar.read_bytes()
        path.write_bytes(OLD)
        for i in range(len(content)):
            for changed in (
                content[:i],
                content[:i] + content[i + 1 :],
                content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :],
            ):
                sidecar.write_bytes(changed)
                with pytest.raises(CheckpointError, match="corrupted|cannot be verified"):
                    verify(path)

    @pytest.mark.slow
    def test_corrupted_sidecar_is_never_read_with_other_fields(self, tmp_path: Path) -> None:
        path, sidecar = tmp_path / "x.pth", tmp_path / "x.pth.json"
        commit_in_two_writes(path, NEW, generation=3)
        content, expected = sidecar.read_bytes(), read_sidecar(path)
        for i in range(len(content)):
            for changed in (content[:i], content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]):
                sidecar.write_bytes(changed)
                assert read_sidecar(path) in (None, expected)

    @pytest.mark.parametrize(
        "content", ["", "[]", "{}", '"x"', "3", "\xff", '{"name": "x", "size": null}', '{"previous": 3}']
    )
    def test_invalid_sidecar_counts_as_missing(self, tmp_path: Path, content: str) -> None:
        commit_in_two_writes(tmp_path / "x.pth", NEW)
        (tmp_path / "x.pth.json").write_bytes(content.encode("latin-1"))

        assert read_sidecar(tmp_path / "x.pth") is None
        assert list_newest_first(tmp_path) == []
        with pytest.raises(CheckpointError, match="x.pth.json is missing or corrupted, so the file cannot be verified"):
            verify(tmp_path / "x.pth")

    def test_hash_is_xxh3_of_the_complete_file(self, tmp_path: Path) -> None:
        content = os.urandom((1 << 20) + 17)
        (tmp_path / "x").write_bytes(content)

        assert hash_file(tmp_path / "x") == xxhash.xxh3_128_hexdigest(content)


class TestListNewestFirst:
    def test_files_are_sorted_by_generation_not_by_name_or_time(self, tmp_path: Path) -> None:
        for name, generation in [("epoch_10.pth", 10), ("epoch_9.pth", 9), ("best.pth", 9), ("epoch_2.pth", 2)]:
            commit_in_two_writes(tmp_path / name, NEW, generation)
        os.utime(tmp_path / "epoch_10.pth", (0, 0))

        assert [path.name for path in list_newest_first(tmp_path)] == [
            "epoch_10.pth",
            "best.pth",
            "epoch_9.pth",
            "epoch_2.pth",
        ]

    def test_hidden_files_other_names_and_files_without_sidecar_are_ignored(self, tmp_path: Path) -> None:
        commit_in_two_writes(tmp_path / ".hidden.pth", NEW)
        commit_in_two_writes(tmp_path / "x.txt", NEW)
        (tmp_path / "bare.pth").write_bytes(NEW)

        assert list_newest_first(tmp_path) == []
        assert [path.name for path in list_newest_first(tmp_path, "*.txt")] == ["x.txt"]
        assert list_newest_first(tmp_path / "missing") == []


class TestWriteJson:
    def load_strictly(self, path: Path) -> Any:
        def reject_constant(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(path.read_text(), parse_constant=reject_constant)

    def test_scalars_become_json_numbers_and_nonfinite_values_null(self, tmp_path: Path) -> None:
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

        assert self.load_strictly(tmp_path / "x.json") == {
            "float": 0.5,
            "nan": None,
            "inf": [None, None, None, None],
            "numpy": [0.5, 3, True, 2.0],
            "torch": {"float": 0.25, "bool": True},
            "plain": [None, True, 3, "é"],
            "3": "a/b",
        }

    def test_reader_gets_the_old_or_the_new_content(self, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        write_json(path, {"old": 1})

        def check_and_reset() -> None:
            assert self.load_strictly(path) in ({"old": 1}, {"new": 2})
            write_json(path, {"old": 1})

        assert kill_at_each_operation(lambda: write_json(path, {"new": 2}), check_and_reset) >= 5
