"""Tests of the example loops: a killed one resumes exactly, and hookbus does not change the losses."""

from __future__ import annotations

import importlib
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook, read_jsonl
from tests.crashes import is_killed_at, run_in_fork
from tests.pages import ROOT, blocks
from tests.plain_loops import PLAIN_LOOPS
from tests.toys import trainer

PAGE = ROOT / "docs" / "custom-loops.md"
LOOPS = sorted((ROOT / "docs" / "examples" / "loops").glob("*.py"))
KILLS = (40, 110)
"""File operations at which the process is killed, one after the other."""


@pytest.fixture(scope="module", autouse=True)
def _import_everything(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what a training imports, so that the forks need not."""
    # After a test with W&B in this process, W&B observes imports, which raises an exception in a fork.
    importlib.import_module("accelerate")
    hooks = [CheckpointHook(save_best=False), JsonlHook()]
    trainer(*hooks, epochs=1, work_dir=tmp_path_factory.mktemp("imports") / "run").fit()


def build_task(path: Path, directory: Path) -> Callable[[], None]:
    """Return a function that executes an example in a directory."""
    directory.mkdir()

    def execute() -> None:
        os.chdir(directory)
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
        runpy.run_path(str(path), run_name="__main__")

    return execute


def get_results(directory: Path) -> dict[str, Any]:
    """Return the states in the last checkpoint, and the log without times."""
    (work_dir,) = (directory / "runs").iterdir()
    checkpoint = read_checkpoint(work_dir / "checkpoints" / "last.pth")
    checkpoint["rng"] = checkpoint["rng"]["torch"]  # the examples seed no other generator
    parts = ("state_dict", "optimizer", "state", "grads", "rng")
    rows = read_jsonl(work_dir / "logs" / "metrics.jsonl")
    return {
        **{name: fingerprint(checkpoint[name]) for name in parts if name in checkpoint},
        "log": [{name: value for name, value in row.items() if name != "time"} for row in rows],
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", LOOPS, ids=lambda path: path.stem)
def test_killed_example_has_the_results_of_the_uninterrupted_one(path: Path, tmp_path: Path) -> None:
    assert run_in_fork(build_task(path, tmp_path / "uninterrupted")) == 0
    task = build_task(path, tmp_path / "killed")
    for number in KILLS:
        assert is_killed_at(task, number)
    assert run_in_fork(task) == 0

    assert get_results(tmp_path / "killed") == get_results(tmp_path / "uninterrupted")


@pytest.mark.parametrize("name", PLAIN_LOOPS)
def test_losses_of_an_example_are_those_of_the_loop_without_hookbus(name: str, tmp_path: Path) -> None:
    path = ROOT / "docs" / "examples" / "loops" / f"{name}.py"
    assert run_in_fork(build_task(path, tmp_path / "example")) == 0

    log = get_results(tmp_path / "example")["log"]
    assert [row["values"]["train/loss"] for row in log if row["kind"] == "train"] == PLAIN_LOOPS[name]()


@pytest.mark.parametrize("path", LOOPS, ids=lambda path: path.stem)
def test_example_on_the_page_equals_its_file(path: Path) -> None:
    (shown,) = [block.text for block in blocks(PAGE, "py") if block.file == path.name]

    assert shown == f"# {path.name}\n{path.read_text()}"
