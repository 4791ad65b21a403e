"""Every hook of this repository's own plugin packages keeps the promises that `check_hook` looks for."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from hookbus import Hook, HookConfig, discovery
from hookbus.testing import check_hook

ROOT = Path(__file__).parent.parent.parent
PROJECTS = [tomllib.loads(path.read_text())["project"] for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
DECLARED = {
    (project["name"], name): target
    for project in PROJECTS
    for name, target in project.get("entry-points", {}).get("hookbus.hooks", {}).items()
}
"""What the projects say of themselves: by package and entry point, the class."""

OFFERS = [offer for offer in discovery.offers() if offer.package in {project["name"] for project in PROJECTS}]


NEEDS: dict[str, tuple[dict[str, Any], str]] = {
    "dist_sampler_seed": ({}, r"give bus\.run a train_loader="),
    "mean_teacher": ({}, "moves 'teacher' of the model towards 'student'"),
    "pipeline_switch": ({"switch_epoch": 1, "switch_pipeline": "math:sqrt"}, "The pipeline of list cannot be switched"),
    "set_epoch_info": ({}, r"has no method set_epoch\(epoch\)"),
    "sync_random_size": ({}, "list cannot have another size"),
    "yolox_mode_switch": ({}, "list cannot be told to leave transforms out"),
}
"""Hooks that need something of model or data that the kit's training has not: settings, and what they say then."""

WORKING = {
    "wandb": {"mode": "offline"},
    "param_scheduler": {"schedulers": {"type": "ExponentialLR", "gamma": 0.9}},
    "yolox_lr": {"warmup_epochs": 1, "num_last_epochs": 1},
}
"""Settings of hooks whose defaults mean nothing in a training as short, or as plain, as the kit's, or offline."""


def settings_of(cls: type[Hook]) -> dict[str, Any]:
    """The first example of each setting that a hook cannot do without, as its config gives them to editors."""
    required = {name: field for name, field in cls.Config.model_fields.items() if field.is_required()}
    for name, field in required.items():
        assert field.examples, f"{cls.Config.__name__}.{name} has no default; give it Field(examples=[...])"
    return {name: field.examples[0] for name, field in required.items() if field.examples}


def test_every_hook_of_a_plugin_folder_is_found() -> None:
    found = {(offer.package, offer.name): offer.entry.value for offer in OFFERS}
    assert found == DECLARED, "install what is missing: pip install -e plugins/..."


@pytest.mark.parametrize(
    "offer", [each for each in OFFERS if each.name not in NEEDS], ids=lambda offer: offer.full_name
)
def test_a_hook_keeps_the_promises(offer: discovery.Offer) -> None:
    cls = discovery.load(offer)
    check_hook(cls, **(WORKING.get(offer.name) or settings_of(cls)))


@pytest.mark.parametrize("name", NEEDS)
def test_a_hook_that_cannot_work_in_a_training_says_what_it_needs(name: str) -> None:
    settings, reason = NEEDS[name]
    with pytest.raises(AssertionError, match=f"breaks a small training: .*{reason}"):
        check_hook(discovery.load(discovery.find(name)), **settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("checkpoint", {"interval": 1, "max_keep_ckpts": 1, "save_best": True, "best_metric": "accuracy"}),
        ("checkpoint", {"interval": 2, "by_epoch": False}),
        ("checkpoint", {"interval": 1, "by_epoch": False, "async_save": True}),
        ("ema", {"overlap": True}),
        ("progress", {"line_every": 0.001}),
        ("logger", {"interval": 1}),
        ("jsonl", {"interval": 1}),
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
def test_a_hook_keeps_them_with_settings_that_make_it_work_more(name: str, settings: dict[str, Any]) -> None:
    check_hook(discovery.load(discovery.find(name)), **settings)


class PathConfig(HookConfig):
    path: str = Field(examples=["runs/pictures", "pictures"])
    size: int = 3


class PathHook(Hook):
    Config = PathConfig


def test_a_hook_that_needs_a_setting_is_tried_with_its_first_example() -> None:
    assert settings_of(PathHook) == {"path": "runs/pictures"}
    check_hook(PathHook, **settings_of(PathHook))


def test_a_setting_without_default_or_example_is_told() -> None:
    class SilentConfig(HookConfig):
        path: str

    class SilentHook(Hook):
        Config = SilentConfig

    with pytest.raises(
        AssertionError, match=r"SilentConfig\.path has no default; give it Field\(examples=\[\.\.\.\]\)"
    ):
        settings_of(SilentHook)
