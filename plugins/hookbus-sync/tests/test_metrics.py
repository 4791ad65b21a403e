"""With one process; what several make of it is in tests/distributed."""

from __future__ import annotations

import pytest
import torch

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_sync import SyncMetricsHook


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(SyncMetricsHook)


def test_with_one_process_numbers_are_as_they_were_found() -> None:
    bus = HookBus([SyncMetricsHook()])
    with bus.run() as run:
        window = run.metrics.window("test")
        bus.emit("before_train_iter")
        bus.emit("after_train_iter", outputs={"loss": torch.tensor(3.0), "acc": 0.5})

        assert run.metrics.means(window) == {"train/loss": 3.0, "train/acc": 0.5}


def test_nothing_to_exchange_is_refused() -> None:
    with pytest.raises(ConfigError, match="metrics: "):
        SyncMetricsHook(metrics=[])
