"""Secrets of a run file are in no file of the run: logs, trackers, checkpoints and `status.json`."""

from __future__ import annotations

import gzip
import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hookbus import Trainer, load_config
from hookbus._cli.app import app

if TYPE_CHECKING:
    from tests.conftest import Project

MODULE = """
    from pydantic import BaseModel, SecretStr
    from torch import nn

    from hookbus import Hook, HookConfig


    class Login(BaseModel):
        link: SecretStr


    class NoteConfig(HookConfig):
        link: SecretStr
        login: Login
        links: dict[str, list[SecretStr]]
        api_key: str
        headers: list[str]
        url: str


    class Note(Hook):
        Config = NoteConfig

        def before_run(self, run):
            run.logger.warning("signed in with %s", self.config.api_key)
            run.metadata["note"] = {"password": self.config.api_key, "text": self.config.link.get_secret_value()}

        def after_train(self, run):
            raise ValueError(f"{self.config.link.get_secret_value()} at {self.config.url} with {self.config.api_key}")


    def classifier(width=4, hub_token="", **settings):
        return nn.Linear(4, 2)
"""


def make_run_file(secret: str, writers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a run file with a secret in each kind of value."""
    note = {
        "type": "note:Note",
        "link": secret,
        "login": {"link": secret},
        "links": {"a": [secret]},
        "api_key": secret,
        "headers": ["Accept: text/html", f"Authorization: Bearer {secret}"],
        "url": f"https://me:{secret}@host/x",
    }
    model = {
        "type": "note:classifier",
        "width": 16,
        "hub_token": secret,
        "source": f"https://{secret}@host.org/x?max_tokens=16",
        "wandb": {"key": secret},
        "mirrors": [{"dsn": f"postgres://u@h/db?password={secret}"}, {"conn": f"Server=x;Password={secret};"}],
        "command": ["train", "--token", secret],
        "max_tokens": 16,
        "pad_token": "<pad>",
    }
    dataset = {"type": "parts:points", "batch_size": 16}
    training = {"iterations": 2}
    return {"work_dir": "runs/x", "model": model, "dataset": dataset, "training": training, "hooks": [note, *writers]}


def train(project: Project, secret: str, work_dir: str, writers: list[dict[str, Any]]) -> Path:
    """Train with a secret in the run file and in the message of the exception that ends the training."""
    project.write(MODULE, "note.py")
    project.write(json.dumps(make_run_file(secret, writers)))
    trainer = Trainer.from_file("run.yaml", [f"work_dir={work_dir}"])
    with pytest.raises(ValueError, match=secret):
        trainer.fit()
    return project.path / work_dir


def read_contents(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the content of each file, also decompressed. Checkpoints are archives without compression."""
    for path in sorted(directory.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        yield path, content
        if content.startswith(b"\x1f\x8b"):
            yield path, gzip.decompress(content)


def find_files_with(secret: str, directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory)) for path, content in read_contents(directory) if secret.encode() in content
    }


@pytest.mark.slow
def test_command_prints_no_secret_of_its_run_file(project: Project) -> None:
    project.write(MODULE, "note.py")
    project.write(json.dumps(make_run_file("S3cretPRINTED", [{"type": "logger"}])))
    result = CliRunner().invoke(app, ["train", "run.yaml"])

    assert result.exit_code == 1
    assert "S3cretPRINTED" not in result.output
    output = " ".join(result.output.split())
    assert "signed in with ***" in output
    # The line of the logger and the traceback.
    assert output.count("ValueError: *** at https://me:***@host/x with ***") == 2
    assert find_files_with("S3cretPRINTED", project.path / "runs") == set()


def test_secret_is_hidden_wherever_the_written_configuration_repeats_it(project: Project) -> None:
    project.write(MODULE, "note.py")
    content = make_run_file("S3cretREPEATED", [])
    content["model"]["comment"] = "use S3cretREPEATED"
    project.write(json.dumps(content))
    config = load_config("run.yaml")
    assert "S3cretREPEATED" not in config.to_yaml()
    assert "comment: use ***  # redacted: set in run.yaml" in config.to_yaml()


WRITERS = [{"type": "jsonl", "interval": 1}, {"type": "tensorboard", "interval": 1}, {"type": "runtime_info"}]
TRACKERS = [
    {"type": "mlflow", "interval": 1, "tags": {"api_key": "TRACKED", "home": "https://me:TRACKED@host"}},
    {"type": "wandb", "interval": 1, "mode": "offline", "config": {"token": "TRACKED", "note": "Bearer TRACKED"}},
]
secrets = st.text(string.ascii_letters + string.digits, min_size=4, max_size=30).map("S3cret".__add__)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=3)
@given(secrets)
def test_secrets_of_a_run_file_are_in_no_log_checkpoint_or_status(project: Project, secret: str) -> None:
    directory = train(project, secret, f"runs/{len(list(project.path.glob('runs/*')))}", WRITERS)

    names = {path.name for path in directory.rglob("*")}
    assert {"status.json", "metrics.jsonl", "last.pth"} <= names
    assert find_files_with(secret, directory) == set()
    status = json.loads((directory / "status.json").read_text())
    assert status["error"] == "ValueError: *** at https://me:***@host/x with ***"
    assert status["about"]["note"] == {"password": "***", "text": "***"}
    (row,) = [
        json.loads(line) for line in (directory / "logs/metrics.jsonl").read_text().splitlines() if '"config"' in line
    ]
    assert row["config"]["model"]["source"] == "https://***@host.org/x?max_tokens=16"
    assert (row["config"]["model"]["max_tokens"], row["config"]["model"]["pad_token"]) == (16, "<pad>")


@pytest.mark.slow
def test_secrets_of_a_run_file_are_in_no_file_of_a_tracker(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["hookbus", "train", "run.yaml", "hooks.note.link=S3cretTRACKED"])
    directory = train(project, "S3cretTRACKED", "runs/trackers", [*WRITERS, *TRACKERS])

    assert {"mlflow.db", "wandb"} <= {path.name for path in directory.rglob("*")}
    assert find_files_with("TRACKED", directory) == set()
