"""Work directory of a run."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import pytest
import torch

from hookbus import HookBus
from hookbus._run.acquisition import acquire
from hookbus._run.status import STATUS, read_status
from hookbus.errors import WorkDirError
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import CsvHook, JsonlHook, LoggerHook
from tests import toys


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable `fsync`: no test depends on a loss of power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestOwn:
    def test_register_output_registers_new_files_also_for_the_resumed_run(self, tmp_path: Path) -> None:
        (tmp_path / "user.txt").touch()
        first = acquire(tmp_path)
        assert not first.register_output(tmp_path / "user.txt")
        assert first.register_output(tmp_path / "new.txt")
        (tmp_path / "new.txt").touch()
        assert first.register_output(tmp_path / "new.txt")
        first.write_status(outcome="stopped", run="me")
        first.release()
        second = acquire(tmp_path, resume=True)

        assert [second.register_output(tmp_path / name) for name in ("user.txt", "new.txt")] == [False, True]
        second.release()

    def test_register_output_registers_no_file_outside(self, tmp_path: Path) -> None:
        work_dir = acquire(tmp_path / "x")
        assert not work_dir.register_output(tmp_path / "new.txt")
        assert not (tmp_path / "x" / ".made").exists()
        work_dir.release()

    def test_config_of_the_user_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("mine: 1")
        work_dir = acquire(tmp_path)
        with pytest.raises(
            WorkDirError, match=r"config.yaml was not written by a run: its first .* Move the file, or set"
        ):
            work_dir.write_config("ours: 2", "me")
        assert (tmp_path / "config.yaml").read_text() == "mine: 1"
        work_dir.release()


class TestStatus:
    def test_status_contains_outcome_metrics_times_and_process(self, tmp_path: Path) -> None:
        work_dir = acquire(tmp_path)
        work_dir.write_status(outcome="running", run="me", metrics={"val/loss": float("nan")})
        status = read_status(tmp_path)

        assert (status["outcome"], status["metrics"], status["pid"]) == ("running", {"val/loss": None}, os.getpid())
        started, updated = (time.strptime(status[key], "%Y-%m-%dT%H:%M:%S%z") for key in ("started", "updated"))
        assert started <= updated
        assert status["seconds"] >= 0
        assert status["host"]
        work_dir.release()

    def test_status_replaces_the_previous_status(self, tmp_path: Path) -> None:
        work_dir = acquire(tmp_path)
        work_dir.write_status(outcome="running", run="me", only_first=1)
        work_dir.write_status(outcome="finished", run="me")
        work_dir.release()

        assert json.loads((tmp_path / STATUS).read_text()).keys() == read_status(tmp_path).keys()
        assert "only_first" not in read_status(tmp_path)
        assert read_status(tmp_path)["outcome"] == "finished"

    @pytest.mark.parametrize("text", [None, "", "{", "3"])
    def test_missing_or_invalid_status_is_empty(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / STATUS).write_text(text)

        assert read_status(tmp_path) == {}


def test_subdirectory_is_created_on_first_use(tmp_path: Path) -> None:
    work_dir = acquire(tmp_path)
    assert not (tmp_path / "logs").exists()

    assert work_dir.directory("logs") == work_dir.directory("logs") == tmp_path / "logs"
    assert (tmp_path / "logs").is_dir()
    work_dir.release()


def test_pickled_work_dir_has_the_path_but_not_the_lock(tmp_path: Path) -> None:
    work_dir = acquire(tmp_path / "x")
    copied = pickle.loads(pickle.dumps(work_dir))
    copied.release()

    assert (copied.path, copied.requested_path, copied.kept_files) == (work_dir.path, None, [])
    with pytest.raises(WorkDirError, match="in use by an active run"):
        acquire(tmp_path / "x", resume=True)
    work_dir.release()


class TestCurrentDirectory:
    @pytest.mark.parametrize("is_removed", [False, True])
    def test_files_are_in_the_directory_of_the_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
    ) -> None:
        other, model = tmp_path / "other", toys.net()
        other.mkdir()
        monkeypatch.chdir(tmp_path)
        bus = HookBus([CheckpointHook(by_epoch=False, interval=1), LoggerHook(), JsonlHook(), CsvHook()])
        with bus.run(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epochs=2, work_dir="x") as run:
            for epoch in toys.run_custom_loop(bus, run, toys.pairs(), model, run.optimizer):
                if epoch == 0:
                    os.chdir(other)
                    if is_removed:
                        other.rmdir()

        names = {path.relative_to(tmp_path / "x").as_posix() for path in (tmp_path / "x").rglob("*")}
        assert {"status.json", "history.jsonl", "report.html", "checkpoints/last.pth"} <= names
        assert {f"checkpoints/iter_{run.iters_done}.pth", "logs/metrics.csv"} <= names
        assert len((tmp_path / "x/history.jsonl").read_text().splitlines()) == 2
        assert not list(tmp_path.glob("other/*"))

    def test_next_run_of_a_trainer_uses_the_same_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path)
        trainer = toys.trainer(CheckpointHook(interval=1), epochs=1, test_loader=toys.pairs(1), work_dir="x")
        trainer.fit()
        monkeypatch.chdir(tmp_path / "other")
        trainer.test()
        trainer.fit(epochs=2)

        assert sorted(path.name for path in (tmp_path / "x/checkpoints").glob("epoch_*.pth")) == [
            "epoch_1.pth",
            "epoch_2.pth",
        ]
        assert not list(tmp_path.glob("other/*"))

    def test_other_ranks_resolve_a_relative_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path)
        work_dir = acquire(Path("x"))
        sent = pickle.dumps(work_dir)
        work_dir.release()
        monkeypatch.chdir(tmp_path / "other")

        assert work_dir.path == tmp_path / "x"
        assert pickle.loads(sent).path == tmp_path / "other/x"
