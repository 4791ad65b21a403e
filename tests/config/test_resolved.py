"""Tests of the resolved configuration: it contains no secrets and can be used again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hookbus._config.load import load_config
from hookbus.checkpoint.state import hash_config
from hookbus.errors import ConfigError
from hookbus.writers import redact_config

if TYPE_CHECKING:
    from tests.conftest import Project

RUN = """
work_dir: ${env:DIRECTORY}
model: {type: net, api_key: "${env:KEY}", other_token: hushhush}
dataset:
  type: points
  url: https://user:${env:KEY}@host/x
  note: "$${literal}"
"""
SECRET = "k3y-0f-th3-t3st"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    monkeypatch.setenv("DIRECTORY", "runs/e")


def test_secrets_are_replaced_and_sources_are_stated(project: Project) -> None:
    text = load_config(project.write(RUN), ["dataset.password=hushhush"]).to_yaml()
    assert SECRET not in text
    assert "hushhush" not in text
    lines = [line.strip() for line in text.splitlines()]
    for line in (
        "work_dir: runs/e  # from the environment: DIRECTORY",
        "api_key: ${env:KEY}",
        "other_token: '***'  # redacted: set in run.yaml:3:56",
        "url: https://user:${env:KEY}@host/x",
        "note: $${literal}",
        "password: '***'  # redacted: set on the command line",
    ):
        assert line in lines


def test_file_with_references_is_loaded_again(project: Project) -> None:
    config = load_config(project.write(RUN), ["~model.other_token"])
    (project.path / "again.yaml").write_text(config.to_yaml())
    again = load_config("again.yaml")
    assert again.model_dump() == config.model_dump()
    assert again.dataset is not None
    assert again.dataset.settings["note"] == "${literal}"


def test_redacted_value_must_be_set_before_the_file_is_used_again(project: Project) -> None:
    config = load_config(project.write(RUN.replace("${env:KEY}@", "hushhush@")))
    (project.path / "again.yaml").write_text(config.to_yaml())
    with pytest.raises(ConfigError) as caught:
        load_config("again.yaml")
    assert [problem.split(": the secret")[0] for problem in caught.value.problems] == [
        "again.yaml:6:16: model.other_token",
        "again.yaml:10:8: dataset.url",
    ]
    assert caught.value.problems[0].endswith(
        "model.other_token: the secret was redacted when this file was written. Set it, preferably as a reference to "
        "an environment variable: ${env:OTHER_TOKEN}."
    )
    overrides = ["model.other_token=hushhush", "dataset.url=https://user:hushhush@host/x"]
    assert load_config("again.yaml", overrides).model_dump() == config.model_dump()


def test_records_contain_references_instead_of_secrets(project: Project) -> None:
    recorded = redact_config(load_config(project.write(RUN)))
    assert recorded["model"]["api_key"] == "${env:KEY}"
    assert recorded["model"]["other_token"] == "***"
    assert SECRET not in str(recorded)


def test_hash_of_the_recorded_configuration_does_not_depend_on_a_secret(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = set()
    for secret in (SECRET, "another-s3cret"):
        monkeypatch.setenv("KEY", secret)
        hashes.add(hash_config(redact_config(load_config(project.write(RUN)))))
    assert len(hashes) == 1


DECLARED = """
from pydantic import SecretStr
from hookbus import Hook, HookConfig


class NoteConfig(HookConfig):
    link: SecretStr = SecretStr("")


class Note(Hook):
    Config = NoteConfig
"""


def test_secret_of_a_declared_type_is_replaced(project: Project) -> None:
    (project.path / "declared_notes.py").write_text(DECLARED)
    project.write(
        "hooks:\n  - {type: 'declared_notes:Note', name: a, link: hushhush}\n"
        "  - {type: 'declared_notes:Note', link: '${env:KEY}'}\n"
    )
    config = load_config("run.yaml")
    text = config.to_yaml()
    assert "  link: '***'  # redacted: set in run.yaml:2:50\n" in text
    assert "  link: ${env:KEY}\n" in text
    assert [hook["link"] for hook in redact_config(config)["hooks"]] == ["***", "${env:KEY}"]
    assert [hook.config.link.get_secret_value() for hook in config.build_hooks()] == ["hushhush", SECRET]
