"""`hookbus summary`: the modules of the model of a run file, without training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hookbus import discovery
from hookbus._cli.app import app

if TYPE_CHECKING:
    from click.testing import Result

    from tests.conftest import Project

RUN = """
    work_dir: runs/x
    model: {type: "net:build"}
    dataset: {type: "net:data", batch_size: 4}
    training: {epochs: 2}
    default_hooks: false
"""
NET = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 2)))

def data():
    return {"train": [(torch.ones(3), 0)] * 8}
"""


@pytest.fixture(autouse=True)
def net(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(RUN)
    (project.path / "net.py").write_text(NET)
    monkeypatch.delitem(__import__("sys").modules, "net", raising=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["summary", "run.yaml", *arguments])


def test_table_and_totals(project: Project) -> None:
    result = call()

    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    # Linear layers: 3 * 5 + 5 and 5 * 2 + 2; of 4 samples: 2 * 4 * 3 * 5 and 2 * 4 * 5 * 2.
    assert lines[1] == ["0", "Linear", "20", "20", "[4,", "3]", "[4,", "5]", "120"]
    assert lines[2] == ["1", "Sequential", "12", "12", "[4,", "5]", "[4,", "2]", "80"]
    assert result.stdout.splitlines()[3:] == [
        "Sequential: 32 parameters, 32 trainable, 0 not trainable",
        "size: 0.000 MB of parameters, 0.000 MB of buffers",
        "FLOPs: 200 in a forward pass for inputs [4, 3]",
    ]
    assert not (project.path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [([], ["0", "1"]), (["--max-depth", "-1"], ["0", "1", "1.0", "1.1"]), (["--max-depth=0"], [])],
)
def test_depth(arguments: list[str], names: list[str]) -> None:
    document = json.loads(call("--json", *arguments).stdout)
    assert [module["name"] for module in document["modules"]] == names
    assert document["totals"]["flops"] == 200


def test_depth_of_the_hook_in_the_file(project: Project) -> None:
    project.write(RUN + "    hooks: [{type: model_summary, max_depth: 2}]\n")
    assert len(json.loads(call("--json").stdout)["modules"]) == 4
    assert len(json.loads(call("--json", "--max-depth=1").stdout)["modules"]) == 2


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "list_entries", lambda *_: [])
    result = call()
    assert result.exit_code == 1
    assert "The hook 'model_summary' is not installed. Run: pip install hookbus-model-summary" in result.stderr


def test_invalid_depth_and_invalid_file(project: Project) -> None:
    assert call("--max-depth=-2").exit_code == 2
    project.write(RUN.replace("epochs: 2", "epochs: x"))
    assert call().exit_code == 2


def test_loader_that_cannot_be_read(project: Project) -> None:
    (project.path / "net.py").write_text(NET.replace("torch.ones(3)", "1 / 0"))
    assert call().exit_code == 2
    (project.path / "net.py").write_text(NET)


def test_disabled_training_data() -> None:
    result = call("training.limit_train_batches=0")
    assert "shapes and FLOPs: unknown, because the loop passes no batch" in result.stdout
