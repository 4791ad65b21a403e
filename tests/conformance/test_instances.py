"""Two instances of a hook with different settings work in either order and after a resume, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookbus import discovery
from hookbus.testing import check_two_instances

Settings = dict[str, Any]

SETTINGS: list[tuple[str, Settings, Settings]] = [
    ("check_invalid_loss", {"interval": 1}, {"interval": 1, "policy": "skip"}),
    ("early_stopping", {"monitor": "val/loss", "restore_best_weights": False}, {"monitor": "val/accuracy"}),
    ("empty_cache", {"after_iter": True}, {"before_epoch": True}),
    ("eval", {"interval": 1}, {"interval": 2}),
    ("freeze", {"modules": ["0"], "until_iter": 2}, {"modules": ["0.weight"]}),
    ("gc", {"interval": 1}, {"interval": 2}),
    ("gradient_flow", {"frequency": 1, "targets": ["0"]}, {"frequency": 2}),
    ("iter_timer", {"interval": 1}, {"interval": 2}),
    ("logger", {"interval": 1}, {"interval": 2, "by_epoch": False}),
    ("memory_profiler", {"interval": 1}, {"interval": 2}),
    (
        "param_scheduler",
        {"schedulers": {"type": "ExponentialLR", "gamma": 0.9}},
        {"schedulers": {"type": "ExponentialLR", "gamma": 0.5, "parameter": "momentum"}},
    ),
    ("progress", {"interval": 1}, {"interval": 2}),
    ("startup_check", {"num_classes": 2}, {"num_classes": 3}),
    ("time_limit", {"max_time": "01:00:00"}, {"max_time": "02:00:00"}),
    ("time_tracking", {}, {"log_to_file": True}),
    ("accumulation", {"schedule": {1: 1, 2: 2}}, {"schedule": {1: 2}}),
    ("ema", {"momentum": 0.9}, {"momentum": 0.99}),
    ("swa", {"swa_epoch_start": 1}, {"swa_epoch_start": 2}),
    ("swa", {"swa_epoch_start": 1, "swa_lrs": 0.1}, {"swa_epoch_start": 2, "swa_lrs": 0.2}),
    ("jsonl", {"interval": 1}, {"interval": 2}),
    ("csv", {"interval": 1, "path": "a.csv"}, {"logging_interval": "epoch", "path": "b.csv"}),
    ("yolox_lr", {"warmup_epochs": 1, "num_last_epochs": 1}, {"warmup_epochs": 0, "num_last_epochs": 1}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first", "second"), SETTINGS, ids=str)
def test_instances_with_different_settings_pass_the_check(
    name: str, first: Settings, second: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cls = discovery.load_entry(discovery.find_entry(name))
    check_two_instances(
        cls, first, second, directory=tmp_path, scores=lambda epoch: {"accuracy": 0.5 + 0.1 * epoch, "loss": 1 / epoch}
    )
