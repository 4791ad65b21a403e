"""Hooks of hookbus in the `custom_hooks` of a Runner."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.registry import HOOKS
from mmengine.runner import Runner

from hookbus.errors import ConfigError, PluginNotFoundError
from hookbus.testing import HostTask
from hookbus_ema import EMAHook
from hookbus_mmengine import HookbusHook

from .adapter import build_runner

NAME = "hookbus_mmengine.HookbusHook"


def train(directory: Path, *hooks: Any, **arguments: Any) -> tuple[Runner, HookbusHook]:
    torch.manual_seed(0)
    runner = build_runner(HostTask(epochs=1), directory, custom_hooks=list(hooks), **arguments)
    runner.train()
    return runner, next(hook for hook in runner.hooks if isinstance(hook, HookbusHook))


@pytest.mark.parametrize("type_", ["HookbusHook", NAME])
def test_entry_contains_settings_of_hooks(type_: str, tmp_path: Path) -> None:
    _, entry = train(tmp_path, {"type": type_, "hooks": [{"type": "EMAHook", "momentum": 0.9}]})
    bus = entry.bridge.bus
    assert (bus.hooks["ema"].config.momentum, bus.current.outcome, bus.current.steps_done) == (0.9, "finished", 6)


def test_entry_contains_hooks_and_options(tmp_path: Path) -> None:
    ema = EMAHook(momentum=0.9)
    _, entry = train(tmp_path, {"type": NAME, "hooks": [ema], "work_dir": str(tmp_path / "hookbus")})
    assert entry.bridge.bus.hooks["ema"] is ema
    assert (tmp_path / "hookbus/status.json").exists()


def test_each_hook_has_a_name_in_the_package(tmp_path: Path) -> None:
    _, entry = train(
        tmp_path,
        {"type": "hookbus_mmengine.EMAHook", "momentum": 0.9},
        {"type": "hookbus_mmengine.gc", "name": "collector"},
    )
    assert list(entry.bridge.bus.hooks) == ["ema", "collector"]


def test_all_entries_are_one_run_and_other_hooks_remain(tmp_path: Path) -> None:
    entries = [
        {"type": NAME, "hooks": [{"type": "EMAHook"}], "work_dir": str(tmp_path / "hookbus")},
        {"type": "EmptyCacheHook"},
        {"type": "hookbus_mmengine.gc"},
    ]
    runner, entry = train(tmp_path, *entries)
    assert list(entry.bridge.bus.hooks) == ["ema", "gc"]
    names = [type(hook).__name__ for hook in runner.hooks]
    assert (names.count("HookbusHook"), names.count("EmptyCacheHook")) == (1, 1)
    assert names.index("ParamSchedulerHook") < names.index("HookbusHook") < names.index("CheckpointHook")


def test_different_values_of_an_option_are_refused(tmp_path: Path) -> None:
    entries = [{"type": NAME, "hooks": [], "work_dir": str(tmp_path / name)} for name in "ab"]
    with pytest.raises(ConfigError, match=r"custom_hooks: work_dir should have one value, got '.*a' and '.*b'"):
        train(tmp_path, *entries)


def test_invalid_setting_is_refused_with_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="momentum"):
        HOOKS.build({"type": "hookbus_mmengine.EMAHook", "momentum": 7})
    with pytest.raises(PluginNotFoundError, match="EMAHok"):
        HOOKS.build({"type": "hookbus_mmengine.EMAHok"})


def test_hook_that_needs_what_mmengine_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hook 'dist_sampler_seed'.*whose data it may modify, which MMEngine"):
        train(tmp_path, {"type": "hookbus_mmengine.DistSamplerSeedHook"})


def test_entry_resumes_with_the_runner(tmp_path: Path) -> None:
    entry = {"type": NAME, "hooks": [{"type": "EMAHook", "momentum": 0.9}]}
    train(tmp_path, entry)
    _, resumed = train(tmp_path, entry, resume=True)
    assert resumed.bridge.active_run.iters_done == 6


def test_package_is_imported_without_mmengine() -> None:
    assert {"HookbusHook", "MMEngineBridge"} <= set(sys.modules["hookbus_mmengine"].__all__)
