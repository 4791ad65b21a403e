"""Every hook of the plugin packages of this repository passes `check_hook`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from hookbus import Hook, HookConfig, discovery
from hookbus._utils.plugin_entries import PluginEntry
from hookbus.testing import check_hook
from hookbus.testing.states import check_copies

ROOT = Path(__file__).parent.parent.parent
PROJECTS = [tomllib.loads(path.read_text())["project"] for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
DECLARED = {
    (project["name"], name): target
    for project in PROJECTS
    for name, target in project.get("entry-points", {}).get("hookbus.hooks", {}).items()
}
"""Declared entry points: hook class by package and name."""

PLUGINS = [plugin for plugin in discovery.list_entries() if plugin.package in {project["name"] for project in PROJECTS}]


def is_checked_by_its_package(plugin: PluginEntry) -> bool:
    """Return whether a test module of the package that names the class of a hook calls `check_hook`."""
    _, _, name = plugin.entry.value.partition(":")
    texts = [path.read_text() for path in ROOT.glob(f"plugins/{plugin.package}/tests/test_*.py")]
    return any("check_hook(" in text and re.search(rf"\b{name}\b", text) for text in texts)


NEEDS: dict[str, tuple[dict[str, Any], str]] = {
    "batch_size_finder": ({}, "Pass `train_loader` to"),
    "dist_sampler_seed": ({}, "Pass `train_loader` to"),
    "lr_finder": ({}, "Pass `train_loader` to"),
    "mean_teacher": ({}, "updates 'teacher' of the model from 'student'"),
    "pipeline_switch": ({"switch_epoch": 1, "switch_pipeline": "math:sqrt"}, "The pipeline of list cannot be switched"),
    "set_epoch_info": ({}, r"requires a model with a method set_epoch\(epoch\)"),
    "sync_random_size": ({}, "list does not support a change of the image size"),
    "yolox_mode_switch": ({}, "list cannot skip transforms"),
}
"""Hooks that require a model or data that the training of the check lacks: settings and the expected error."""

WORKING = {
    "wandb": {"mode": "offline"},
    "param_scheduler": {"schedulers": {"type": "ExponentialLR", "gamma": 0.9}},
    "yolox_lr": {"warmup_epochs": 1, "num_last_epochs": 1},
}
"""Settings of hooks whose defaults do not work offline or in a training as small as that of the check."""


def get_example_settings(cls: type[Hook]) -> dict[str, Any]:
    """Return the first example of each required setting, as the config documents it for editors."""
    required = {name: field for name, field in cls.Config.model_fields.items() if field.is_required()}
    for name, field in required.items():
        assert field.examples, f"{cls.Config.__name__}.{name} has no default. Set Field(examples=[...])."
    return {name: field.examples[0] for name, field in required.items() if field.examples}


def get_working_settings(plugin: PluginEntry) -> dict[str, Any]:
    """Return settings with which a hook can be created and registered."""
    if plugin.name in NEEDS:
        return NEEDS[plugin.name][0]
    return WORKING.get(plugin.name) or get_example_settings(discovery.load_entry(plugin))


def test_every_declared_hook_is_installed() -> None:
    entry_points = {(plugin.package, plugin.name): plugin.entry.value for plugin in PLUGINS}
    assert entry_points == DECLARED, "Install the missing packages: pip install -e plugins/..."


def test_every_hook_can_be_copied_and_pickled() -> None:
    for plugin in PLUGINS:
        check_copies(discovery.load_entry(plugin)(**get_working_settings(plugin)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "plugin",
    [plugin for plugin in PLUGINS if plugin.name not in NEEDS and not is_checked_by_its_package(plugin)],
    ids=lambda plugin: plugin.full_name,
)
def test_hook_passes_the_check(plugin: PluginEntry) -> None:
    check_hook(discovery.load_entry(plugin), **get_working_settings(plugin))


@pytest.mark.parametrize("name", NEEDS)
def test_hook_without_its_preconditions_is_an_error(name: str) -> None:
    settings, reason = NEEDS[name]
    with pytest.raises(AssertionError, match=f"fails in a small training: .*{reason}"):
        check_hook(discovery.load_entry(discovery.find_entry(name)), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("checkpoint", {"interval": 1, "max_keep_ckpts": 1, "save_best": True, "best_metric": "accuracy"}),
        ("checkpoint", {"interval": 2, "by_epoch": False}),
        ("checkpoint", {"interval": 1, "by_epoch": False, "async_save": True}),
        ("checkpoint", {"save_best": "train/loss", "save_top_k": 2, "filename_tmpl": "{epoch}-{train/loss:.2f}"}),
        ("ema", {"overlap": True}),
        ("progress", {"line_every": 0.001}),
        ("logger", {"interval": 1}),
        ("jsonl", {"interval": 1}),
        ("csv", {"interval": 1}),
        ("iter_timer", {"interval": 1}),
        ("time_tracking", {"log_to_file": True, "log_path": "times.log"}),
        (
            "visualization",
            {"interval": 1, "content": ["predictions", "feature_maps"], "backend": "pillow"},
        ),
        ("det_visualization", {"interval": 1}),
        ("seg_visualization", {"interval": 1}),
        ("feature_map", {"frequency": 1}),
    ],
    ids=str,
)
def test_hook_passes_the_check_with_more_work(name: str, settings: dict[str, Any]) -> None:
    check_hook(discovery.load_entry(discovery.find_entry(name)), **settings)


class PathConfig(HookConfig):
    path: str = Field(examples=["runs/images", "images"])
    size: int = 3


class PathHook(Hook):
    Config = PathConfig


def test_required_setting_has_its_first_example() -> None:
    assert get_example_settings(PathHook) == {"path": "runs/images"}
    check_hook(PathHook, **get_example_settings(PathHook))


def test_setting_without_default_or_example_is_an_error() -> None:
    class WithoutExampleConfig(HookConfig):
        path: str

    class WithoutExampleHook(Hook):
        Config = WithoutExampleConfig

    with pytest.raises(
        AssertionError, match=r"WithoutExampleConfig\.path has no default\. Set Field\(examples=\[\.\.\.\]\)"
    ):
        get_example_settings(WithoutExampleHook)
