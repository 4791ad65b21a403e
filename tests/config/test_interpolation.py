"""Tests of references to environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hookbus._config.interpolation import get_safe_template
from hookbus._config.load import load_config
from hookbus.checkpoint.state import hash_config
from hookbus.errors import ConfigError
from hookbus.writers import redact_config

if TYPE_CHECKING:
    from tests.conftest import Project


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"PORT": "8080", "TEXT": "abc", "PW": "123", "RATE": "1e-3", "OFF": "false", "NONE": "null", "EMPTY": ""}
    for name, value in {**values, "NESTED": "${env:PW}", "LINES": "a\nb", "LONG": "x" * 100_000}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEY", SECRET)
    monkeypatch.setenv("DIRECTORY", "runs/e")


def get_problem(source: Any, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    (problem,) = caught.value.problems
    return problem.removeprefix("config: ")


class TestValues:
    @pytest.mark.parametrize(
        ("template", "value"),
        [
            ("${env:PORT}", 8080),
            ("${env:RATE}", 0.001),
            ("${env:OFF}", False),
            ("${env:NONE}", None),
            ("${env:EMPTY}", ""),
            ("${env:TEXT}", "abc"),
            ("${env:LINES}", "a\nb"),
            ("${env:MISSING,7}", 7),
            ("${env:MISSING, a, b }", "a, b"),
            ("${env:MISSING,}", ""),
            ("${env:PORT,7}", 8080),
            ("${env: PORT }", 8080),
            ("http://${env:TEXT}:${env:PORT}/x", "http://abc:8080/x"),
            ("${env:PORT} ", "8080 "),
            ("$${env:PORT}", "${env:PORT}"),
            ("$$${env:PORT}", "$${env:PORT}"),
            ("${env:NESTED}", "${env:PW}"),
            ("$PORT {env:PORT}", "$PORT {env:PORT}"),
            (r"${\\alpha}$ ${ ${·", r"${\\alpha}$ ${ ${·"),
        ],
    )
    def test_value_is_read_as_if_it_were_written_in_the_file(self, template: str, value: Any) -> None:
        config = load_config({"model": {"type": "net", "x": [template]}})
        assert config.model is not None
        (resolved,) = config.model.settings["x"]
        assert (type(resolved), resolved) == (type(value), value)

    def test_value_of_a_secret_stays_a_string(self) -> None:
        config = load_config({"model": {"type": "net", "password": "${env:PW}", "api_key": "${env:NONE}"}})
        assert config.model is not None
        assert config.model.settings == {"password": "123", "api_key": "null"}

    def test_types_are_those_of_the_sections(self) -> None:
        config = load_config(
            {
                "work_dir": "${env:PW}",
                "seed": "${env:PORT}",
                "training": {"epochs": "${env:PW}", "clip_grad_norm": "${env:NONE}"},
                "default_hooks": "${env:OFF}",
                "load_from": "${env:PW}",
                "resume": "${env:PW}",
                "metrics": ["${env:PW}"],
                "loss": "${env:PW}",
            }
        )
        assert (config.work_dir, config.seed, config.default_hooks) == ("123", 8080, False)
        assert config.training is not None
        assert (config.training.epochs, config.training.clip_grad_norm) == (123, None)
        assert config.load_from is not None
        assert (config.load_from.path, config.resume, config.metrics, config.loss) == ("123", "123", ["123"], "123")

    @pytest.mark.parametrize("in_list", [True, False])
    def test_types_are_those_of_the_hook(self, project: Project, in_list: bool) -> None:
        settings = {"interval": "${env:PORT}", "ratio": "${env:RATE}", "tags": ["${env:PW}"], "priority": "${env:PW}"}
        entry = {"type": "parts:ProbeHook", **settings}
        config = load_config({"hooks": [entry] if in_list else {"probe": entry}})
        (hook,) = config.build_hooks()
        assert (hook.config.interval, hook.config.ratio, hook.config.tags) == (8080, 0.001, ["123"])
        assert hook.config.priority == 123

    def test_override_may_contain_a_reference(self, project: Project) -> None:
        project.write("seed: ${env:MISSING}\ntraining: {epochs: 1}\n")
        config = load_config("run.yaml", ["training.epochs=${env:PORT}", "seed=3"])
        assert config.training is not None
        assert (config.training.epochs, config.seed) == (8080, 3)

    def test_mapping_of_the_caller_is_not_modified(self) -> None:
        source = {"model": {"type": "net", "x": "${env:PORT}"}}
        load_config(source)
        assert source == {"model": {"type": "net", "x": "${env:PORT}"}}


class TestErrors:
    @pytest.mark.parametrize(
        ("template", "problem"),
        [
            (
                "${env:PROT}",
                "seed: the environment variable PROT is not set. Did you mean 'PORT'? Set it, or write "
                "${env:PROT,default}.",
            ),
            (
                "${HOME}",
                "seed: invalid reference '${HOME}'. Write ${env:NAME} or ${env:NAME,default} for an environment "
                "variable, which cannot be nested, and $${ for a literal ${.",
            ),
            ("a ${env:PORT", "seed: invalid reference '${env:PORT'. Write "),
            ("${oc.env:PORT}", "seed: invalid reference '${oc.env:PORT}'. Write "),
            ("${env:A,${env:B}}", "seed: invalid reference '${env:A,${env:B}'. Write "),
            (
                "${env:PORT:-80}",
                "seed: invalid name 'PORT:-80' of an environment variable. Write ${env:PORT,default} for a default.",
            ),
            ("${env:}", "seed: invalid name '' of an environment variable."),
            (
                "${env:TEXT}",
                "seed: should be a valid integer, got 'abc'. The value refers to the environment: TEXT.",
            ),
            ("${env:MISSING,-1}", "seed: should be greater than or equal to 0, got -1. The value refers to the "),
        ],
    )
    def test_invalid_reference_is_an_error(self, template: str, problem: str) -> None:
        assert get_problem({"seed": template}).startswith(problem)

    def test_error_has_the_location_in_the_file(self, project: Project) -> None:
        project.write("seed: 1\nmodel:\n  type: net\n  width: ${env:MISSING}\n")
        assert get_problem("run.yaml").startswith(
            "run.yaml:4:10: model.width: the environment variable MISSING is not set."
        )

    def test_length_of_all_values_is_limited(self) -> None:
        problem = "the values of environment variables have more than 1,048,576 characters."
        assert get_problem({"work_dir": "${env:LONG}" * 100_000}) == f"work_dir: {problem}"

    def test_value_that_is_not_unicode_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BYTES", "\udcff")
        assert get_problem({"device": "${env:BYTES}"}).startswith("device: invalid character U+DCFF")


@pytest.mark.parametrize(
    ("template", "hidden", "safe"),
    [
        ("${env:A}", True, "${env:A}"),
        ("${env:A,secret}", True, "${env:A}"),
        ("Bearer ${env:A}", True, "Bearer ${env:A}"),
        ("secret${env:A}", True, None),
        ("https://user:${env:A}@host/${env:B}", False, "https://user:${env:A}@host/${env:B}"),
        ("https://user:secret@${env:A}/", False, None),
        ("https://user:${env:A,secret}@host/", False, "https://user:${env:A}@host/"),
        ("https://host/x?api_key=${env:A}", False, "https://host/x?api_key=${env:A}"),
        ("Authorization: Bearer ${env:A}", False, "Authorization: Bearer ${env:A}"),
        ("host/${env:A}?api_key=secret", False, None),
    ],
)  # fmt: skip
def test_template_without_literal_secrets_can_be_recorded(template: str, hidden: bool, safe: str | None) -> None:
    assert get_safe_template(template, hidden=hidden) == safe


RUN = """
work_dir: ${env:DIRECTORY}
model: {type: net, api_key: "${env:KEY}", other_token: hushhush}
dataset:
  type: points
  url: https://user:${env:KEY}@host/x
  note: "$${literal}"
"""
SECRET = "k3y-0f-th3-t3st"


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
