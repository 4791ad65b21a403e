"""The closing lines of a training describe every file that hooks of this repository write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hookbus import Run, Trainer, load_config
from hookbus._cli.app import app

if TYPE_CHECKING:
    from tests.conftest import Project

RUN = """
    work_dir: runs/x
    model: {type: cnn, width: 4}
    dataset: {type: digits, batch_size: 256}
    metrics: [accuracy]
    default_hooks: false
    training: {epochs: 3, limit_train_batches: 3, limit_val_batches: 1}
"""
HOOKS = """
    hooks:
      - jsonl
      - csv
      - {type: csv, name: copy, path: ELSEWHERE}
      - {type: tensorboard, interval: 1}
      - {type: time_tracking, log_to_file: true}
      - {type: checkpoint, publish: true, save_best: false}
      - {type: profiler, schedule: {wait: 0, warmup: 0, active: 1}}
      - {type: gradient_flow, frequency: 3}
      - {type: lr_finder, num_training_steps: 5, save_dir: range}
      - {type: system_monitor, show_plots: true}
      - {type: visualization, interval: 9}
      - {type: feature_map, frequency: 9, layers: ["0"]}
"""


def train(project: Project, hooks: str) -> dict[str, str]:
    """Train with a run file, and return the listed files with their descriptions."""
    project.write(RUN + hooks)
    result = CliRunner().invoke(app, ["train", "run.yaml"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    listed = lines[lines.index("The files of this run are in runs/x") + 1 : lines.index("Next steps") - 1]
    files = {name: description.strip() for name, _, description in (line.strip().partition("  ") for line in listed)}
    assert all(files.values()), listed
    return files


def list_undescribed(directory: Path, listed: dict[str, str]) -> list[str]:
    """Return the visible files that are neither listed nor in a listed directory; sidecars belong to their files."""
    names = {Path(name) for name in listed}
    files = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]
    visible = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    return [str(path) for path in visible if names.isdisjoint([path, path.with_suffix(""), *path.parents])]


@pytest.mark.slow
def test_each_file_is_described(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    elsewhere = str(project.path / "elsewhere.csv")
    listed = train(project, HOOKS.replace("ELSEWHERE", elsewhere))
    assert listed == {
        "checkpoints/epoch_3.pth": "newest checkpoint, iteration 9",
        "checkpoints": "2 earlier checkpoints",
        "checkpoints/model.safetensors": "weights for inference",
        elsewhere: "metrics as CSV",
        "config.yaml": "all settings",
        "history.jsonl": "metrics of each epoch",
        "logs/metrics.csv": "metrics as CSV",
        "logs/metrics.jsonl": "metrics as JSON lines",
        "logs/tensorboard": "TensorBoard event files",
        "logs/time_tracking.log": "time of each epoch",
        "profiler": "traces and report of the profiler",
        "report.html": "report of the run",
        "status.json": "outcome: finished",
        "visualization/feature_map": "images",
        "visualization/gradient_flow": "charts of gradients",
        "visualization/range": "learning-rate range test",
        "visualization/system_train.png": "plots of the system metrics",
        "visualization/visualization": "images",
    }
    assert list_undescribed(project.path / "runs/x", listed) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "description"), [("mlflow", "files of MLflow"), ("wandb", "files of Weights & Biases")]
)
def test_files_of_a_tracker_are_described(project: Project, hook: str, description: str) -> None:
    settings = "{type: wandb, mode: offline}" if hook == "wandb" else hook
    listed = train(project, f"    hooks: [{settings}]\n")
    assert listed[f"logs/{hook}"] == description
    assert list_undescribed(project.path / "runs/x", listed) == []


@pytest.mark.slow
def test_files_of_predictions_are_described(project: Project) -> None:
    project.write(RUN + "    hooks: [{type: predictions, interval: batch_and_epoch}]\n")
    trainer, described = Trainer(load_config("run.yaml")), dict[str, str]()

    @trainer.bus.on("after_run")
    def read(run: Run) -> None:
        assert run.work_dir is not None
        described.update({path.name: description for path, description in run.work_dir.outputs.items()})

    trainer.predict(trainer.val_loader, return_predictions=False)
    assert described["predictions.pt"] == "256 predictions"  # one batch
    assert described["predictions-batches"] == "predictions of each batch"
