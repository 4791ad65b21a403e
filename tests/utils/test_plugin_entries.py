"""Tests of the names under which entry points are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

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

    def test_listed_name_works_in_a_run_file(self, listed: Any) -> None:
        broken = {name for name, problems in listed["named"].items() if problems}
        assert broken == {"broken", "odd", "tomorrow"}
        assert {"greet", "logger", "progress", "twin-one/twin", "twin-two/twin"} <= set(listed["named"]) - broken
