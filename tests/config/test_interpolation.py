"""Tests of references to environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hookbus._config.interpolation import get_safe_template
from hookbus._config.load import load_config
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Project


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"PORT": "8080", "TEXT": "abc", "PW": "123", "RATE": "1e-3", "OFF": "false", "NONE": "null", "EMPTY": ""}
    for name, value in {**values, "NESTED": "${env:PW}", "LINES": "a\nb", "LONG": "x" * 100_000}.items():
        monkeypatch.setenv(name, value)


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
