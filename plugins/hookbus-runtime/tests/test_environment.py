from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hookbus_runtime.environment import collect_environment, get_device_name, get_git_revision


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
