"""Metadata of a run: each assignment is in the status file at once."""

from __future__ import annotations

import json
from pathlib import Path

from hookbus import HookBus


def read_metadata(work_dir: Path) -> object:
    return json.loads((work_dir / "status.json").read_text())["about"]


def test_assigned_metadata_is_written_at_once(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        assert read_metadata(tmp_path / "run") == {}
        run.metadata["host"] = "a"
        assert read_metadata(tmp_path / "run") == {"host": "a"}
        run.metadata.update({"host": "b"}, gpus=2)
        assert read_metadata(tmp_path / "run") == {"host": "b", "gpus": 2}
        del run.metadata["host"]
        assert read_metadata(tmp_path / "run") == {"gpus": 2}


def test_update_writes_the_file_once(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        writes: list[None] = []
        run.metadata.write = lambda: writes.append(None)
        run.metadata.update(a=1, b=2)
        assert len(writes) == 1


def test_secrets_in_metadata_are_redacted_in_the_file(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        run.metadata["password"] = "hunter2"
        assert run.metadata["password"] == "hunter2"
    assert "hunter2" not in (tmp_path / "run" / "status.json").read_text()


def test_metadata_of_a_run_without_files_is_kept_in_memory() -> None:
    with HookBus().run() as run:
        run.metadata["host"] = "a"
        assert dict(run.metadata) == {"host": "a"}
