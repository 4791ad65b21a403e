"""Averaged metrics with a single process. Multiple processes are tested in tests/distributed."""

from __future__ import annotations

import pytest
import torch

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_sync import SyncMetricsHook


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(SyncMetricsHook)


def test_single_process_does_not_modify_the_metrics() -> None:
    bus = HookBus([SyncMetricsHook()])
    with bus.run() as run:
        window = run.metrics.window("test")
        bus.emit("before_train_iter")
        bus.emit("after_train_iter", outputs={"loss": torch.tensor(3.0), "acc": 0.5})

        assert run.metrics.means(window) == {"train/loss": 3.0, "train/acc": 0.5}


def test_empty_list_of_metrics_is_an_error() -> None:
    with pytest.raises(ConfigError, match="metrics: "):
        SyncMetricsHook(metrics=[])
