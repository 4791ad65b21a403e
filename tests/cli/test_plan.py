"""`hookbus plan`: what fires when, and what is written, without training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hookbus._cli.app import app
from hookbus._cli.plan_output import format_size

if TYPE_CHECKING:
    from click.testing import Result

    from tests.conftest import Project

RUN = """
    work_dir: runs/x
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 0.1}
    training: {epochs: 6}
    metrics: [accuracy]
    default_hooks: false
    hooks:
      - {type: checkpoint, interval: 2, max_keep_ckpts: 2}
      - {type: jsonl, interval: 3}
      - {type: time_tracking, log_to_file: true}
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", "run.yaml", *arguments])


def test_tables(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    project.write(RUN)
    result = call()

    assert (result.exit_code, result.stderr) == (0, ""), result.output
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[:2] == [
        "6 epochs, 24 iterations, 24 optimizer steps",  # 32 samples in batches of 8
        "6 validations, after iteration 4, 8, 12, ...",
    ]
    rows = [line.split() for line in lines]
    assert ["after_train_epoch", "3", "epochs", "2,", "4,", "6", "every(2,", "unit='epoch')", "checkpoint"] in rows
    assert any(
        line.split()[:4] == ["after_run", "1", "every", "event"] and "checkpoint, jsonl" in line for line in lines
    )
    assert any(line.startswith("on request: log_scalars: jsonl; ") for line in lines)
    # 4 * 8 + 8 and 8 * 2 + 2 parameters of 4 bytes.
    assert ["checkpoints/epoch_{}.pth", "checkpoint", "each", "after_train_epoch", "3", "232", "B", "2"] in rows
    assert ["checkpoints/last.pth", "checkpoint", "each", "checkpoint", "?", "link", "1"] in rows
    assert "about 696 B at the end, as far as known" in lines  # two periodic files, and the best one
    assert lines[-1] == "time_tracking: writes files that it does not list"
    assert not (project.path / "runs").exists()


def test_json(project: Project) -> None:
    project.write(RUN)
    document = json.loads(call("--json", "training.epochs=2").stdout)
    assert (document["work_dir"], document["total"]) == ("runs/x", 2 * 232)
    assert document["events"]["validations"] == [4, 8]
    assert {"hook": "jsonl", "point": "after_train_iter"}.items() <= next(
        row for row in document["events"]["listeners"] if row["hook"] == "jsonl" and row["point"] == "after_train_iter"
    ).items()
    assert [row["path"] for row in document["files"]] == [
        "config.yaml",
        "status.json",
        "checkpoints/epoch_{}.pth",
        "checkpoints/last.pth",
        "checkpoints/best_accuracy.pth",
        "logs/metrics.jsonl",
    ]


def test_validations_before_training_are_planned(project: Project) -> None:
    project.write(RUN)
    counts = {}
    for override in ("seed=0", "training.validate_first=true", "hooks.eval.before_train=true"):
        result = call("--json", "training.epochs=2", override)
        assert result.exit_code == 0, result.output
        events = json.loads(result.stdout)["events"]
        counts[override] = events["validations"]
    assert counts == {
        "seed=0": [4, 8],
        "training.validate_first=true": [0, 4, 8],
        "hooks.eval.before_train=true": [0, 4, 8],
    }
    lines = [
        line.strip()
        for line in call("training.validate_first=true", "hooks.eval.before_train=true").stdout.splitlines()
    ]
    assert lines[1:3] == [
        "1 validation before training, after the listeners of before_train; its results are discarded",
        "6 validations, after iteration 4, 8, 12, ...",
    ]


def test_invalid_file(project: Project) -> None:
    project.write(RUN)
    result = call("training.epochs=x")
    assert result.exit_code == 2
    assert "training.epochs" in result.stderr


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (56_700_000, "56.7 MB"), (999_900, "1.00 MB")]
)
def test_sizes_have_three_digits(size: int, text: str) -> None:
    assert format_size(size) == text
