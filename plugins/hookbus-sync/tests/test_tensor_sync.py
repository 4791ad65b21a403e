from __future__ import annotations

import logging
from typing import Any

import pytest
from torch import nn

from hookbus import HookBus
from hookbus.testing import check_hook
from hookbus_sync import SyncBuffersHook, SyncNormHook

HOOKS = [SyncNormHook, SyncBuffersHook]


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_pass_the_conformance_checks(hook: Any) -> None:
    check_hook(hook)


@pytest.mark.parametrize(
    ("hook", "model", "count"),
    [
        (SyncNormHook, nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), 5),
        (SyncNormHook, nn.Linear(1, 1), 0),
        (SyncNormHook, None, 0),
        (SyncBuffersHook, nn.BatchNorm1d(2), 3),
    ],
)
def test_hooks_are_no_ops_with_a_single_process(
    hook: Any, model: nn.Module | None, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hookbus"), HookBus([hook()]).run(model=model):
        pass

    assert f"{hook().name}: no-op with a single process ({count} tensors)." in caplog.messages
