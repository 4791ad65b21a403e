"""Tests of `HOOKBUS_BLOCK` in run files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from hookbus._config.blocking import warn_of_unknown_blocks
from hookbus.errors import HookWarning

if TYPE_CHECKING:
    from tests.conftest import Environment


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        ("hookbus-logger", "HOOKBUS_BLOCK: 'hookbus-logger' is not an installed hook and is ignored."),
        ("logger, loger", "'loger' is not an installed hook and is ignored. Did you mean 'logger'"),
    ],
)
def test_unknown_blocked_name_is_a_warning(monkeypatch: pytest.MonkeyPatch, blocked: str, message: str) -> None:
    monkeypatch.setenv("HOOKBUS_BLOCK", blocked)
    with pytest.warns(HookWarning, match=re.escape(message)) as caught:
        warn_of_unknown_blocks()
    assert len(caught) == 1


@pytest.mark.parametrize("blocked", ["", " , ", "logger,LoggerHook,Hookbus_Logger/logger", "cnn,digits", "EMAHook"])
def test_known_blocked_names_do_not_warn(monkeypatch: pytest.MonkeyPatch, blocked: str) -> None:
    monkeypatch.setenv("HOOKBUS_BLOCK", blocked)
    warn_of_unknown_blocks()


@pytest.mark.slow
def test_blocked_hook_of_a_run_file_is_skipped_with_a_warning(environment: Environment) -> None:
    script = """
        import warnings
        from hookbus import load_config
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config = load_config({"hooks": ["greet", {"type": "twin-one/twin"}]})
        answer = [config.hooks, [str(warning.message) for warning in caught]]
    """
    assert environment.answer(script, HOOKBUS_BLOCK="GreetHook") == [
        [{"type": "twin-one/twin"}],
        ["config: hooks.0: 'greet' is skipped because of HOOKBUS_BLOCK=GreetHook."],
    ]
