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


def settings_of(cls: type[Hook]) -> dict[str, Any]:
    """The first example of each setting that a hook cannot do without, as its config gives them to editors."""
    required = {name: field for name, field in cls.Config.model_fields.items() if field.is_required()}
    for name, field in required.items():
        assert field.examples, f"{cls.Config.__name__}.{name} has no default; give it Field(examples=[...])"
    return {name: field.examples[0] for name, field in required.items() if field.examples}


def test_every_hook_of_a_plugin_folder_is_found() -> None:
    found = {(offer.package, offer.name): offer.entry.value for offer in OFFERS}
    assert found == DECLARED, "install what is missing: pip install -e plugins/..."


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.full_name)
def test_a_hook_keeps_the_promises(offer: discovery.Offer) -> None:
    cls = discovery.load(offer)
    check_hook(cls, **settings_of(cls))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("checkpoint", {"interval": 1, "max_keep_ckpts": 1, "save_best": True, "best_metric": "accuracy"}),
        ("checkpoint", {"interval": 2, "by_epoch": False}),
        ("logger", {"interval": 1}),
        ("jsonl", {"interval": 1}),
        ("iter_timer", {"interval": 1}),
        ("time_tracking", {"log_to_file": True, "log_path": "times.log"}),
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
