"""Work directory of a run."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import pytest

from hookbus._run.acquisition import acquire
from hookbus._run.status import STATUS, read_status
from hookbus.errors import WorkDirError


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
