"""In which order a save touches the disk, from its first byte to the last file that it removes."""

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
def test_a_whole_save_writes_flushes_renames_and_only_then_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: bool
) -> None:
    (tmp_path / "checkpoints").mkdir()
    trace = traced(monkeypatch, tmp_path / "checkpoints")
    hook = CheckpointHook(max_keep_ckpts=1, save_last=True, async_save=mode)
    fake_training([hook], epochs=2, scores=lambda epoch: {"accuracy": epoch / 10}, work_dir=tmp_path)

    first = [
        *written("epoch_1.pth", replaces=False),
        *linked("epoch_1.pth", "best_accuracy.pth", replaces=False),
        *linked("epoch_1.pth", "last.pth", replaces=False),
    ]
    second = [
        *written("epoch_2.pth", replaces=False),
        *linked("epoch_2.pth", "best_accuracy.pth", replaces=True),
        *linked("epoch_2.pth", "last.pth", replaces=True),
        "replace epoch_1.pth .tmp",
        "unlink epoch_1.pth.json",
        "unlink .tmp",
    ]
    assert trace == [*first, *second]


def written(name: str, *, replaces: bool) -> list[str]:
    """A file, flushed before it gets its name; the sidecar has its name first."""
    return ["open .tmp", "write .tmp", "fsync .tmp", *placed(name, replaces=replaces)]


def linked(source: str, name: str, *, replaces: bool) -> list[str]:
    return [f"link {source} .tmp", *placed(name, replaces=replaces)]


def placed(name: str, *, replaces: bool) -> list[str]:
    """The sidecar, the file, and where one was replaced, the sidecar that no longer knows of it."""
    sidecar = [each.format(name) for each in SIDECAR]
    return [*sidecar, f"replace .tmp {name}", "fsync dir", *(sidecar if replaces else [])]


def traced(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """The operations on files of a folder from here on; writes that follow each other are one."""
    trace: list[str] = []

    def place(path: Any) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{path}")) if isinstance(path, int) else Path(path)

    def name(path: Any) -> str:
        found = place(path)
        return "dir" if found == folder else ".tmp" if found.name.startswith(".tmp-") else found.name

    def note(what: str, *paths: Any) -> None:
        if all(folder in (path := place(each), path.parent) for each in paths):
            trace.append(" ".join([what, *map(name, paths)]))

    def noted(what: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def do(*paths: Any, **more: Any) -> Any:
            is_leftover = what == "unlink" and not Path(paths[0]).exists()
            if not is_leftover:
                note(what, *paths)
            return operation(*paths, **more)

        return do

    real_open = builtins.open

    def open_noted(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = real_open(path, mode, *args, **kwargs)
        if "w" not in mode or Path(path).parent != folder:
            return file
        note("open", path)
        return Noted(file, lambda: trace.append("write .tmp") if trace[-1] != "write .tmp" else None)

    for operation in ("fsync", "replace", "link", "unlink"):
        monkeypatch.setattr(os, operation, noted(operation, getattr(os, operation)))
    monkeypatch.setattr(builtins, "open", open_noted)
    return trace


class Noted:
    """A file whose writes are noted."""

    def __init__(self, file: Any, note: Callable[[], None]) -> None:
        self._file, self._note = file, note

    def write(self, data: Any) -> Any:
        self._note()
        return self._file.write(data)

    def __enter__(self) -> Noted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
