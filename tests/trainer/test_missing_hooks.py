"""Tests of the warning of a Trainer whose default hooks are not installed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from hookbus._run.run import Run
from hookbus.hook import Hook
from hookbus.metrics.results import Metrics
from hookbus.writers.metric_recorder import MetricRecorder
from tests import toys
from tests.conftest import Environment

BOTH = (
    "hooks: no hook logs metrics or saves checkpoints, which requires hookbus-logger and hookbus-checkpoint. Run: "
    'pip install "hookbus[standard]", or set `default_hooks` to false to train without.'
)
LOGGER = BOTH.replace(" or saves checkpoints", "").replace(" and hookbus-checkpoint", "")
CHECKPOINT = BOTH.replace("logs metrics or ", "").replace("hookbus-logger and ", "")


class ScalarHook(Hook):
    def log_scalars(self, values: Any) -> None:
        pass


class RecordHook(MetricRecorder):
    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        pass


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the hooks of two packages behind packages of the same name that publish none."""
    for name in ("hookbus-logger", "hookbus-checkpoint"):
        metadata = tmp_path / "packages" / f"{name.replace('-', '_')}-0.1.0.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path / "packages")


def get_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("hooks", "has_work_dir", "expected"),
    [
        ([], True, [BOTH]),
        ([], False, [LOGGER]),
        ([ScalarHook], True, [CHECKPOINT]),
        ([ScalarHook], False, []),
        ([toys.Saver], True, [LOGGER]),
        ([RecordHook], True, [CHECKPOINT]),
    ],
)
@pytest.mark.usefixtures("bare")
def test_warning_names_what_no_hook_does(
    hooks: list[type[Hook]], has_work_dir: bool, expected: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work_dir = tmp_path / "run" if has_work_dir else None
    toys.trainer(*[hook() for hook in hooks], epochs=1, work_dir=work_dir, default_hooks=True).fit()

    assert get_warnings(caplog) == expected


@pytest.mark.usefixtures("bare")
def test_warning_is_logged_once_per_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = toys.trainer(epochs=1, work_dir=tmp_path / "run", val_loader=toys.pairs(1), default_hooks=True)
    trainer.validate()
    assert get_warnings(caplog) == []
    trainer.fit()
    trainer.fit(epochs=2)

    assert get_warnings(caplog) == [BOTH]


@pytest.mark.usefixtures("bare")
def test_trainer_without_default_hooks_logs_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    toys.trainer(epochs=1, work_dir=tmp_path / "run", default_hooks=False).fit()

    assert get_warnings(caplog) == []


def test_disabled_and_blocked_hooks_that_are_installed_cause_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKBUS_BLOCK", "logger,progress,iter_timer,checkpoint,preemption")
    toys.trainer(epochs=1, work_dir=tmp_path / "run", default_hooks=True).fit()

    assert get_warnings(caplog) == []


@pytest.mark.slow
def test_command_line_without_plugins_prints_the_command_once(bare_environment: Environment) -> None:
    (bare_environment.path / "parts.py").write_text(
        "import torch\nfrom hookbus import Splits\n\n"
        "def points():\n    return Splits(torch.utils.data.TensorDataset(torch.ones(4, 2), torch.ones(4).long()))\n\n"
        "def net():\n    return torch.nn.Linear(2, 2)\n"
    )
    (bare_environment.path / "run.yaml").write_text(
        "model: {type: 'parts:net'}\ndataset: {type: 'parts:points', batch_size: 2}\n"
        "optimizer: {type: SGD, lr: 0.1}\ntraining: {epochs: 2}\nwork_dir: runs/bare\n"
    )
    done = bare_environment.hookbus("train", "run.yaml")

    assert done.returncode == 0, done.stderr
    assert done.stderr.count(BOTH) == 1
