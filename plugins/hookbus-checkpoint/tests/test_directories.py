"""Checkpoint directories inside and outside of work directories: shared, linked, and with foreign files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus._run.run import Run
from hookbus.checkpoint.sidecars import verify
from hookbus.errors import CheckpointError, WorkDirError
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook
from tests.entries import KINDS, occupy

NAMES = ("epoch_1.pth", "epoch_2.pth", "best_accuracy.pth", "last.pth", "model.safetensors", "generation_1")


def train(directory: Path, *hooks: Hook, **options: Any) -> Run:
    """Train two epochs in a work directory."""
    return fake_training(
        hooks, epochs=2, batches=1, scores=lambda epoch: {"accuracy": epoch / 10}, work_dir=directory, **options
    ).run


def build_hook(directory: Path | str | None = None) -> CheckpointHook:
    settings = {} if directory is None else {"out_dir": str(directory)}
    return CheckpointHook(max_keep_ckpts=1, publish=True, **settings)


def describe(path: Path) -> tuple[int, int, str]:
    """Return the type, the identity, and the target or content of an entry."""
    status = os.lstat(path)
    content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
    return status.st_mode, status.st_ino, content


class TestForeignEntries:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("suffix", ["", ".json"])
    def test_entries_are_unchanged_by_train_resume_and_overwrite(self, tmp_path: Path, suffix: str, kind: str) -> None:
        folder, target = tmp_path / "out", tmp_path / "target"
        folder.mkdir()
        target.write_text("years of work")
        paths = [folder / f"{name}{suffix}" for name in NAMES]
        for path in paths:
            occupy(path, kind, target)
        before = [describe(path) for path in paths]
        for options in ({}, {"resume": "auto"}, {"overwrite": True}):
            run = train(tmp_path / "run", build_hook(folder), **options)
            assert run.best["val/accuracy"].path == folder / "best_accuracy-2.pth"
            assert [describe(path) for path in paths] == before
        assert target.read_text() == "years of work"
        assert sorted(path.name for path in folder.glob("*-2.pth")) == [
            "best_accuracy-2.pth",
            "epoch_2-2.pth",
            "last-2.pth",
        ]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("options", [{"resume": "auto"}, {"overwrite": True}], ids=["resume", "overwrite"])
    def test_entries_that_replaced_checkpoints_are_unchanged(
        self, tmp_path: Path, options: dict[str, Any], kind: str
    ) -> None:
        folder, target = tmp_path / "run/checkpoints", tmp_path / "target"
        target.write_text("years of work")
        train(tmp_path / "run", CheckpointHook(publish=True))
        paths = [folder / name for name in ("epoch_1.pth", "best_accuracy.pth", "last.pth", "model.safetensors")]
        for path in paths:
            path.unlink()
            occupy(path, kind, target)
        before = [describe(path) for path in paths]
        train(tmp_path / "run", build_hook(), **options)

        assert [describe(path) for path in paths] == before
        assert target.read_text() == "years of work"

    def test_escape_sequences_in_names_are_not_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = tmp_path / "out \x1b[31m red"
        folder.mkdir()
        (folder / "last.pth").touch()
        train(tmp_path / "run", build_hook(folder))

        assert "is not overwritten" in caplog.text
        assert all(message.isprintable() for message in caplog.messages), caplog.messages
        (folder / "epoch_\x1b[31m.pth").write_bytes((folder / "epoch_2.pth").read_bytes())
        (folder / "epoch_\x1b[31m.pth.json").write_bytes((folder / "epoch_2.pth.json").read_bytes())
        with pytest.raises(CheckpointError, match="contains checkpoints of another run") as raised:
            train(tmp_path / "other", build_hook(folder))
        assert "\x1b" not in str(raised.value)


class TestSharedDirectory:
    def test_run_in_another_work_directory_is_an_error_and_changes_nothing(self, tmp_path: Path) -> None:
        folder = tmp_path / "out"
        train(tmp_path / "one", build_hook(folder))
        before = {path.name: path.read_bytes() for path in folder.glob("[!.]*")}
        for options in ({}, {"overwrite": True}):
            with pytest.raises(CheckpointError, match="contains checkpoints of another run"):
                train(tmp_path / "two", build_hook(folder), **options)

        assert {path.name: path.read_bytes() for path in folder.glob("[!.]*")} == before

    @pytest.mark.parametrize("path", ["link", "dots", "link inside the work directory"])
    def test_directory_of_an_active_run_is_recognized_under_another_path(self, tmp_path: Path, path: str) -> None:
        folder, other = tmp_path / "out", tmp_path / "two"
        folder.mkdir()
        other.mkdir()
        (tmp_path / "link").symlink_to(folder)
        (other / "inside").symlink_to(folder)
        paths = {
            "link": tmp_path / "link",
            "dots": other / "../out",
            "link inside the work directory": other / "inside",
        }

        class OtherRun(Hook):
            def after_train_epoch(self) -> None:
                with pytest.raises(WorkDirError, match="in use by an active run"):
                    train(other, build_hook(paths[path]))

        train(tmp_path / "one", build_hook(folder), OtherRun())
        assert verify(folder / "last.pth").generation == 2

    def test_hooks_may_use_two_paths_of_one_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "link").symlink_to("out")
        (tmp_path / "out").mkdir()
        hooks = [
            CheckpointHook(out_dir=path, by_epoch=False, filename_tmpl=f"{name}_{{}}.pth", name=name)
            for path, name in (
                ("../out", "relative"),
                (str(tmp_path / "out"), "absolute"),
                (str(tmp_path / "link"), "linked"),
            )
        ]
        train(tmp_path / "run", *hooks)

        generations = sorted(verify(path).generation for path in (tmp_path / "out").glob("*_[12].pth"))
        assert len(set(generations)) == 6
        assert verify(tmp_path / "out/last.pth").generation > 6


def test_resumed_run_without_an_iteration_replaces_its_own_last_file(tmp_path: Path) -> None:
    for iterations in (2, 0):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bus = HookBus([CheckpointHook(interval=2, by_epoch=False, save_best=False)])
        with bus.run(model=model, optimizer=optimizer, work_dir=tmp_path, resume="auto") as run:
            for _ in range(iterations):
                bus.emit("before_train_iter", batch=torch.ones(1, 2))
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                bus.emit("after_train_iter", batch=torch.ones(1, 2), outputs={"loss": torch.ones(())})
            run.request_save("at the end")
            run.settle()

    assert not list((tmp_path / "checkpoints").glob("last-2*"))
