"""Order of the file operations of a save: write, fsync, rename, and removal of old files."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook

SIDECAR = ["open .tmp", "write .tmp", "fsync .tmp", "replace .tmp {}.json", "fsync dir"]


@pytest.mark.parametrize("mode", [False, True])
def test_save_writes_flushes_and_renames_before_it_removes_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: bool
) -> None:
    (tmp_path / "checkpoints").mkdir()
    operations = trace_operations(monkeypatch, tmp_path / "checkpoints")
    hook = CheckpointHook(max_keep_ckpts=1, save_last=True, async_save=mode)
    fake_training([hook], epochs=2, scores=lambda epoch: {"accuracy": epoch / 10}, work_dir=tmp_path)

    first = [
        *expect_write("epoch_1.pth", replaces=False),
        *expect_link("epoch_1.pth", "best_accuracy.pth", replaces=False),
        *expect_link("epoch_1.pth", "last.pth", replaces=False),
    ]
    second = [
        *expect_write("epoch_2.pth", replaces=False),
        *expect_link("epoch_2.pth", "best_accuracy.pth", replaces=True),
        *expect_link("epoch_2.pth", "last.pth", replaces=True),
        "replace epoch_1.pth .tmp",
        "fsync dir",  # else a power failure could leave the file without its sidecar
        "unlink epoch_1.pth.json",
        "unlink .tmp",
    ]
    assert operations == [*first, *second]


def expect_write(name: str, *, replaces: bool) -> list[str]:
    """Return the operations of a write: the file is flushed before the rename, and the sidecar is renamed first."""
    return ["open .tmp", "write .tmp", "fsync .tmp", *expect_rename(name, replaces=replaces)]


def expect_link(source: str, name: str, *, replaces: bool) -> list[str]:
    return [f"link {source} .tmp", *expect_rename(name, replaces=replaces)]


def expect_rename(name: str, *, replaces: bool) -> list[str]:
    """Return the operations of a rename: sidecar, file, and after a replacement the sidecar without the old file."""
    sidecar = [operation.format(name) for operation in SIDECAR]
    return [*sidecar, f"replace .tmp {name}", "fsync dir", *(sidecar if replaces else [])]


def trace_operations(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[str]:
    """Record operations on files of a directory; consecutive writes are one operation."""
    trace: list[str] = []

    def resolve(path: Any) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{path}")) if isinstance(path, int) else Path(path)

    def name(path: Any) -> str:
        resolved = resolve(path)
        return "dir" if resolved == directory else ".tmp" if resolved.name.startswith(".tmp-") else resolved.name

    def record(operation: str, *paths: Any) -> None:
        if all(directory in (resolved := resolve(path), resolved.parent) for path in paths):
            trace.append(" ".join([operation, *map(name, paths)]))

    def wrap(operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*paths: Any, **options: Any) -> Any:
            is_leftover = operation == "unlink" and not Path(paths[0]).exists()
            if not is_leftover:
                record(operation, *paths)
            return function(*paths, **options)

        return call

    real_open = builtins.open

    def open_traced(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = real_open(path, mode, *args, **kwargs)
        if "w" not in mode or Path(path).parent != directory:
            return file
        record("open", path)
        return TracedFile(file, lambda: trace.append("write .tmp") if trace[-1] != "write .tmp" else None)

    for operation in ("fsync", "replace", "link", "unlink"):
        monkeypatch.setattr(os, operation, wrap(operation, getattr(os, operation)))
    monkeypatch.setattr(builtins, "open", open_traced)
    return trace


class TracedFile:
    """File with a callback before each write."""

    def __init__(self, file: Any, on_write: Callable[[], None]) -> None:
        self._file, self._on_write = file, on_write

    def write(self, data: Any) -> Any:
        self._on_write()
        return self._file.write(data)

    def __enter__(self) -> TracedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
