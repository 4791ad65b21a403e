"""Tokens in a run file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookbus import load_config
from hookbus.errors import ConfigError


def load(directory: Path, training: str, overrides: Any = ()) -> Any:
    path = directory / "run.yaml"
    path.write_text(f"training: {{{training}}}\n")
    return load_config(path, overrides)


@pytest.mark.parametrize("text", ["2e9", "2000000000", "2_000_000_000", "2.0e9"])
def test_limit_is_a_whole_number(tmp_path: Path, text: str) -> None:
    training = load(tmp_path, f"tokens: {text}, batch_tokens: num_tokens").training
    assert (training.tokens, training.batch_tokens) == (2_000_000_000, "num_tokens")
    assert type(training.tokens) is int


@pytest.mark.parametrize("others", [(), ("~training.epochs",), ("training.epochs=null",)])
def test_override_replaces_the_limit_of_the_file(tmp_path: Path, others: tuple[str, ...]) -> None:
    for overrides in ([*others, "training.tokens=1e6"], ["training.tokens=1e6", *others]):
        training = load(tmp_path, "epochs: 3, batch_tokens: num_tokens", overrides).training
        assert (training.epochs, training.tokens) == (None, 1_000_000)


def test_two_limits_on_the_command_line_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exactly one limit is required"):
        load(tmp_path, "epochs: 3", ["training.iterations=5", "training.epochs=4"])


def test_name_of_the_key_is_no_secret(tmp_path: Path) -> None:
    config = load(tmp_path, "tokens: 5, batch_tokens: num_tokens")
    assert "batch_tokens: num_tokens" in config.to_yaml()


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ("tokens: 5", "the run counts no tokens. Set batch_tokens as well"),
        ("tokens: 5, epochs: 1, batch_tokens: n", "exactly one limit is required"),
        ("tokens: 1.5, batch_tokens: n", "tokens"),
        ("tokens: many, batch_tokens: n", "tokens"),
        ("tokens: 0, batch_tokens: n", "tokens"),
        ("max_tokens: 5, batch_tokens: n", "tokens"),
    ],
)
def test_invalid_limit_is_refused(tmp_path: Path, training: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, training)
