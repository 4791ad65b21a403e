"""Tests of the names under which entry points are listed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hookbus._utils.known_keys import PUBLISHED_HOOKS
from hookbus._utils.plugin_entries import explain_missing, get_publishing_package

if TYPE_CHECKING:
    from tests.conftest import Environment


LISTED = """
    import os, warnings
    from hookbus._config.load import parse_config
    from hookbus._utils.plugin_entries import short_names
    from hookbus.discovery import list_entries
    warnings.simplefilter("ignore")
    names = list(short_names(list_entries()).values())
    named, blocked = {}, {}
    for name in names:
        os.environ["HOOKBUS_BLOCK"] = name
        config, problems = parse_config({"hooks": [{"type": name}, "greet"]})
        blocked[name] = len(config.hooks), problems
    os.environ["HOOKBUS_BLOCK"] = ""
    for name in set(names) - {"killing", "leaving"}:
        named[name] = parse_config({"hooks": [{"type": name}]})[1]
    answer = {"named": named, "blocked": blocked}
"""


@pytest.fixture(scope="module")
def listed(environment: Environment) -> Any:
    """Return, by listed name, the errors of a run file with the hook and with the blocked hook."""
    return environment.answer(LISTED, MARKER=str(environment.path / "listed"))


class TestListedNames:
    @pytest.mark.slow
    def test_listed_name_can_be_blocked(self, listed: Any) -> None:
        expected = {name: [0 if name == "greet" else 1, []] for name in listed["blocked"]}
        assert listed["blocked"] == expected
        assert {"broken", "killing", "twin-one/twin", "twin-two/twin"} < set(expected)

    @pytest.mark.slow
    def test_listed_name_works_in_a_run_file(self, listed: Any) -> None:
        broken = {name for name, problems in listed["named"].items() if problems}
        assert broken == {"broken", "odd", "tomorrow"}
        assert {"greet", "logger", "progress", "twin-one/twin", "twin-two/twin"} <= set(listed["named"]) - broken


FINDING = """
    import json, os
    from hookbus.discovery import find_entry
    from hookbus.errors import PluginNotFoundError

    answer = {}
    for name in json.loads(os.environ["NAMES"]):
        try:
            find_entry(name)
        except PluginNotFoundError as error:
            answer[name] = str(error)
"""


@pytest.fixture(scope="module")
def missing(bare_environment: Environment) -> dict[str, str]:
    """Return the errors of the names of all hooks of the project if none is installed."""
    names = [name for hooks in PUBLISHED_HOOKS.values() for pair in hooks.items() for name in pair]
    answer: dict[str, str] = bare_environment.answer(FINDING, NAMES=json.dumps(names))
    return answer


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package, hooks in PUBLISHED_HOOKS.items() for pair in hooks.items() for name in pair],
)
@pytest.mark.slow
def test_missing_hook_of_the_project_names_its_package(missing: dict[str, str], package: str, name: str) -> None:
    assert missing[name] == f"The hook {name!r} is not installed. Run: pip install {package}"


def test_close_match_among_published_hooks_is_suggested(environment: Environment) -> None:
    answer = environment.answer(FINDING, NAMES='["EMAHok"]')
    assert "No installed package publishes the hook 'EMAHok'. Did you mean 'EMAHook'" in answer["EMAHok"]


def test_package_of_a_missing_hook_is_known() -> None:
    assert get_publishing_package("ema") == get_publishing_package("EMAHook") == "hookbus-ema"
    assert get_publishing_package("unknown") is None


def test_published_names_are_unique() -> None:
    names = [name for hooks in PUBLISHED_HOOKS.values() for pair in hooks.items() for name in pair]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("kind", "name"), [("model", "cnn"), ("model", "mlp"), ("dataset", "digits")])
def test_package_of_a_missing_model_or_dataset_is_named(kind: str, name: str) -> None:
    assert explain_missing(name, kind, []) == f"The {kind} {name!r} is not installed. Run: pip install hookbus-zoo"


def test_close_match_among_published_datasets_is_suggested() -> None:
    assert "publishes the dataset 'digit'. Did you mean 'digits'?" in explain_missing("digit", "dataset", [])
    assert "Did you mean" not in explain_missing("digits", "model", [])
