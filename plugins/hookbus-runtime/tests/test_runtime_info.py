from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, Run
from hookbus.testing import RecordingBus, check_hook, fake_training
from hookbus_runtime import RuntimeInfoHook
from hookbus_runtime.runtime_info import collect_environment, get_device_name, get_git_revision


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(RuntimeInfoHook)


def test_environment_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hookbus"):
        fake_training([RuntimeInfoHook()], seed=7)

    assert f"host: {socket.gethostname()}" in caplog.messages
    assert "seed: 7" in caplog.messages


def test_each_setting_is_logged_on_its_own_line(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"optimizer": {"type": "SGD", "lr": 0.1}, "metrics": ["accuracy"], "loss": None}
    with caplog.at_level(logging.INFO, "hookbus"):
        fake_training([RuntimeInfoHook()], config=settings)

    assert [line for line in caplog.messages if line.startswith("config")] == [
        "config.optimizer.type: SGD",
        "config.optimizer.lr: 0.1",
        "config.metrics.0: accuracy",
        "config.loss: null",
    ]


def test_secrets_of_the_configuration_are_redacted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="hookbus"):
        fake_training([RuntimeInfoHook()], config={"hub": {"hf_token": "abc"}})

    assert "config.hub.hf_token: ***" in caplog.messages


def test_environment_is_in_the_status_file_during_and_after_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run" / "status.json"
    statuses: list[Any] = []

    class StatusReader(Hook):
        def before_train(self, run: Run) -> None:
            statuses.append(json.loads(path.read_text()))

    fake_training([RuntimeInfoHook(), StatusReader()], seed=7, work_dir=tmp_path / "run")
    statuses.append(json.loads(path.read_text()))

    assert [status["outcome"] for status in statuses] == ["running", "finished"]
    for status in statuses:
        assert status["about"]["seed"] == 7
        assert status["about"]["versions"]["torch"] == str(torch.__version__)


def test_environment_is_logged_to_the_writers_once() -> None:
    bus = RecordingBus([RuntimeInfoHook()])
    fake_training(bus=bus, seed=7)
    (text,) = bus.get_arguments("log_text")

    assert text["tag"] == "runtime_info"
    assert "seed: 7" in text["text"].splitlines()


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


class TestRevision:
    def test_revision_is_the_commit_with_a_suffix_for_modified_files(self, tmp_path: Path) -> None:
        git(tmp_path, "init")
        (tmp_path / "file").write_text("1")
        git(tmp_path, "add", "file")
        git(tmp_path, "commit", "--message", "first")
        commit = git(tmp_path, "rev-parse", "HEAD")
        (tmp_path / "new").write_text("untracked")

        assert get_git_revision(tmp_path) == commit
        (tmp_path / "file").write_text("2")
        assert get_git_revision(tmp_path) == f"{commit}-dirty"

    def test_revision_is_none_outside_a_repository_and_without_git(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        assert get_git_revision(tmp_path) is None
        monkeypatch.setenv("PATH", "")
        assert get_git_revision(tmp_path) is None


class TestEnvironment:
    def test_environment_is_json_serializable(self) -> None:
        environment = collect_environment("cpu")

        assert json.loads(json.dumps(environment)) == environment
        assert environment["versions"]["torch"] == str(torch.__version__)
        assert environment["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
        assert (environment["pid"], environment["device"]) == (os.getpid(), "cpu")

    def test_device_name_contains_the_product_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"name of {device}")

        assert get_device_name(torch.device("cuda", 1)) == "cuda:1 (name of cuda:1)"
        assert get_device_name(None) is None
