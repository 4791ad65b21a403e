"""`hookbus check --host`: what the hooks of a file can do in another trainer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookbus._cli.app import app
from hookbus.bridge import Capabilities
from tests.foreign_trainer import publish

EPOCHLESS = Capabilities(
    host="Epochless",
    bridge="unused:Unused",
    missing={"after_epoch": "it has no epochs. Use `iter_timer`."},
    approximate={"before_train_iter": "it is emitted late."},
    checkpoints=("host", "hookbus"),
)

HOOKS = """
hooks:
  - {type: gc}
  - {type: iter_timer}
  - {type: time_tracking}
"""
REASON = "requires after_epoch, which Epochless does not emit: it has no epochs. Use `iter_timer`."


@pytest.fixture(autouse=True)
def _published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with publish(tmp_path_factory.mktemp("site-packages"), f"{__name__}:EPOCHLESS"):
        yield


def check(path: Path, text: str, *options: str) -> Result:
    (path / "hooks.yaml").write_text(text)
    return CliRunner().invoke(app, ["check", str(path / "hooks.yaml"), "--host", "tests", *options])


def test_table_has_the_status_of_each_hook_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    result = check(tmp_path, HOOKS)
    assert (result.exit_code, [line.rstrip() for line in result.stdout.splitlines()]) == (
        2,
        [
            "Epochless:",
            "  works                gc",
            "  works approximately  iter_timer",
            " " * 23 + "before_train_iter: it is emitted late.",
            "  cannot work          time_tracking",
            " " * 23 + REASON,
        ],
    )


def test_exit_code_is_0_if_all_hooks_work(tmp_path: Path) -> None:
    assert check(tmp_path, HOOKS, "~hooks.time_tracking").exit_code == 0


def test_json_contains_the_same(tmp_path: Path) -> None:
    result = check(tmp_path, HOOKS, "--json")
    assert result.exit_code == 2
    assert [(row["hook"], row["status"], row["notes"]) for row in json.loads(result.stdout)] == [
        ("gc", "works", []),
        ("iter_timer", "works approximately", ["before_train_iter: it is emitted late."]),
        ("time_tracking", "cannot work", [REASON]),
    ]
    assert json.loads(result.stdout)[0]["package"].startswith("hookbus-runtime ")


@pytest.mark.parametrize(
    ("options", "code"), [((), 2), (("--checkpoints", "host"), 2), (("--checkpoints", "hookbus"), 0)]
)
def test_checkpoint_hook_requires_that_it_owns_the_checkpoints(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    assert check(tmp_path, "hooks: [{type: checkpoint}]", *options).exit_code == code


def test_unsupported_owner_of_checkpoints_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "EPOCHLESS", Capabilities(host="Epochless", bridge="unused:Unused"))
    result = check(tmp_path, HOOKS, "--checkpoints", "hookbus")
    assert (result.exit_code, "--checkpoints: should be 'host' in Epochless, got 'hookbus'." in result.stderr) == (
        2,
        True,
    )


def test_trainer_without_a_package_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hooks.yaml").write_text(HOOKS)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "hooks.yaml"), "--host", "ignit"])
    assert (
        "--host: no installed package connects a trainer of this name, got 'ignit'. Did you mean 'ignite'?"
        in result.stderr
    )
    assert result.exit_code == 2


@pytest.mark.parametrize("option", [["--json"], ["--checkpoints", "host"]])
def test_option_without_a_host_is_an_error(tmp_path: Path, option: list[str]) -> None:
    result = CliRunner().invoke(app, ["check", str(tmp_path / "hooks.yaml"), *option])
    assert (result.exit_code, f"{option[0]}: no effect without --host. Pass --host." in result.stderr) == (2, True)


def test_file_without_hooks_is_reported(tmp_path: Path) -> None:
    result = check(tmp_path, "hooks: []")
    assert (result.exit_code, result.stdout) == (0, "The file contains no hooks.\n")
