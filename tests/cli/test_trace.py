"""`hookbus trace`: a short training in a temporary directory, and the time and the synchronizations of its hooks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hookbus._cli.app import app

if TYPE_CHECKING:
    from click.testing import Result

    from tests.conftest import Project

RUN = """
    work_dir: runs/x
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 0.1}
    training: {epochs: 5}
    default_hooks: false
    hooks:
      - {type: "slow:SlowHook"}
      - {type: jsonl}
      - {type: checkpoint, out_dir: OUTSIDE}
"""
SLOW = """
from hookbus import Hook

class SlowHook(Hook):
    def after_train_iter(self, run, outputs):
        if outputs["loss"] > 1000:
            run.request_stop("diverged")
"""


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import `slow` of the directory of the test, not that of an earlier one."""
    monkeypatch.delitem(sys.modules, "slow", raising=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", "run.yaml", *arguments])


def test_tables_and_file(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    project.write(RUN.replace("OUTSIDE", str(project.path / "outside")))
    (project.path / "slow.py").write_text(SLOW)
    before = set(Path("/tmp").glob("hookbus-trace-*"))
    result = call("--iterations", "6", "-o", "six.json")

    assert result.exit_code == 0, result.output
    assert f"checkpoint: omitted, because it writes to out_dir={project.path / 'outside'}." in result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("5 iterations of ")
    rows = [line.split() for line in lines]
    # Compared in each of 6 iterations, of which the first one is not measured.
    assert [row[:3] for row in rows if row[:2] == ["slow", "after_train_iter"]] == [
        ["slow", "after_train_iter", "5"],
        ["slow", "after_train_iter", "1"],
    ]
    assert [row[-1] for row in rows if row[:2] == ["slow", "after_train_iter"]] == ["5", "1"]
    assert ["6", "slow", "slow.py:6", "if", 'outputs["loss"]', ">", "1000:"] in rows
    assert rows[-1][:2] == ["Wrote", "six.json."]
    # Neither the directory of the run nor the one outside is created, and the temporary one is removed.
    assert sorted(path.name for path in project.path.iterdir() if path.suffix != ".pyc") == sorted(
        {"__pycache__", "parts.py", "run.yaml", "six.json", "slow.py"} & {path.name for path in project.path.iterdir()}
    )
    assert set(Path("/tmp").glob("hookbus-trace-*")) <= before
    names = [event["name"] for event in json.loads(Path("six.json").read_text())["traceEvents"]]
    assert [name for name in names if name.startswith("iteration")] == [f"iteration {n}" for n in range(1, 7)]
    assert names.count("slow: after_train_iter") == 6


@pytest.mark.slow
def test_json_contains_the_rows_of_each_rank(project: Project) -> None:
    project.write(RUN.replace("OUTSIDE", "checkpoints"))
    (project.path / "slow.py").write_text(SLOW)
    result = call("--iterations", "2", "--json")

    assert result.exit_code == 0, result.output
    (summary,) = json.loads(result.stdout)
    assert (summary["rank"], summary["iterations"]) == (0, 1)
    assert {"hook", "point", "calls", "total_ns", "max_ns", "synchronizations"} == set(summary["in_iterations"][0])
    assert "a save" in {row["point"] for row in summary["outside"] if row["hook"] == "checkpoint"}
    assert Path("trace.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["training.epochs=x"], 2, "training.epochs"),
        (["-o", "parts.py/trace.json"], 2, "--output: parts.py is no existing folder, got parts.py/trace.json."),
        (
            ["~hooks", "-o", "x" * 300],
            1,
            f"{'x' * 300} cannot be written: File name too long. Pass another file to --output.",
        ),
    ],
)
def test_errors(project: Project, arguments: list[str], code: int, message: str) -> None:
    project.write(RUN)
    result = call("--iterations", "1", *arguments)
    assert (result.exit_code, message in result.stderr) == (code, True), result.output


def test_run_without_calls_of_hooks_prints_a_sentence_and_no_table(project: Project) -> None:
    project.write(RUN.partition("    hooks:")[0])
    result = call("--iterations", "2")

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1:] == [
        "No hook was called in these iterations.",
        "",
        "No hook waits for the device.",
        "",
        "Wrote trace.json. Open it in https://ui.perfetto.dev.",
    ]
