"""Tests of the policy for deprecations: they are listed with a version, and removed in time."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from packaging.version import Version
from pydantic import Field

from docs.generating.deprecations import iter_deprecations, list_own_deprecations
from hookbus import HookConfig, deprecated
from hookbus._events.points import parse_points

REMOVAL = re.compile(r"will be removed in (\S+) (\d\S*)\.")


class OldPoints:
    """Points with deprecations."""

    @deprecated(removed_in="hookbus 0.1", replacement="after_render")
    def after_frame(self, image: object) -> None: ...

    @deprecated(removed_in="hookbus 99.0", replacement="image", argument="pixels")
    def after_render(self, image: object, pixels: object) -> None: ...


class OldConfig(HookConfig):
    """Settings with a deprecation that names no version."""

    zoom: float = Field(default=1.0, deprecated="Set `scale`.")


def find_overdue(deprecations: list[tuple[str, str]]) -> list[str]:
    """Return what is removed by the installed versions, or states no version."""
    matches = {name: REMOVAL.search(text) for name, text in deprecations}
    return [
        name
        for name, match in matches.items()
        if match is None or Version(match[2]) <= Version(importlib.metadata.version(match[1]))
    ]


@pytest.fixture
def old() -> list[tuple[str, str]]:
    return list(iter_deprecations(parse_points(OldPoints).values(), {"render": OldConfig}))


def test_points_arguments_and_settings_are_listed(old: list[tuple[str, str]]) -> None:
    assert old == [
        ("`after_frame`", "deprecated and will be removed in hookbus 0.1. Use after_render instead."),
        ("`after_render(pixels)`", "deprecated and will be removed in hookbus 99.0. Use image instead."),
        ("`render.zoom`", "deprecated: Set `scale`."),
    ]


def test_overdue_and_unversioned_deprecations_are_found(old: list[tuple[str, str]]) -> None:
    assert find_overdue(old) == ["`after_frame`", "`render.zoom`"]


def test_everything_deprecated_states_a_later_version() -> None:
    assert find_overdue(list_own_deprecations()) == []
