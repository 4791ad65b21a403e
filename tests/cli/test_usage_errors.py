"""Usage errors that name the arguments to pass instead."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hookbus._cli.app import app


def read_error(*arguments: str) -> str:
    """Return the last line that a command prints before it exits with 2."""
    result = CliRunner().invoke(app, arguments, prog_name="hookbus")
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["run.yaml", "configs/run.yml"])
def test_name_of_a_run_file_without_a_command_names_train(name: str) -> None:
    expected = f"Error: No such command '{name}'. To train with a run file, write: hookbus train {name}"
    assert read_error(name) == expected


def test_misspelled_command_is_suggested() -> None:
    assert read_error("chek", "run.yaml") == "Error: No such command 'chek'. Did you mean 'check', 'schema'?"


@pytest.mark.parametrize(
    ("arguments", "override"),
    [
        (["--training.epochs=3"], "training.epochs=3"),
        (["--hooks.ema.momentum=0.1"], "hooks.ema.momentum=0.1"),
        (["--epochs", "3"], "training.epochs=3"),
        (["--batch-size=4"], "dataset.batch_size=4"),
        (["--work-dir", "runs/x"], "work_dir=runs/x"),
        (["--learning-rate", "--json"], "optimizer.lr=..."),
        (["--max_epochs"], "training.epochs=..."),
    ],
)
@pytest.mark.parametrize("command", ["train", "check", "explain", "test"])
def test_setting_that_is_passed_as_an_option_names_the_override(
    command: str, arguments: list[str], override: str
) -> None:
    option = arguments[0].partition("=")[0]
    expected = f"Error: No such option: {option}. Pass a setting without dashes: {override}"
    assert read_error(command, "run.yaml", *arguments) == expected


@pytest.mark.parametrize("arguments", [["--hooks.wandb.api_key=0a1b2c"], ["--hooks.wandb.api_key", "0a1b2c"]])
def test_value_of_a_secret_is_hidden(arguments: list[str]) -> None:
    expected = "Error: No such option: --hooks.wandb.api_key. Pass a setting without dashes: hooks.wandb.api_key=***"
    assert read_error("check", "run.yaml", *arguments) == expected


@pytest.mark.parametrize("option", ["--unknown", "--train-dataloader"])
def test_option_that_names_no_setting_of_run_files_has_no_hint(option: str) -> None:
    assert read_error("check", "run.yaml", option) == f"Error: No such option: {option}"


def test_overrides_after_two_dashes_are_no_options() -> None:
    error = read_error("check", "pyproject.toml", "--", "--epochs=3")
    assert "No such option" not in error
