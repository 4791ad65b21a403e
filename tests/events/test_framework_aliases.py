"""Tests of the callback names of other frameworks against the documentation page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookbus._events.framework_aliases import FRAMEWORK_ALIASES, find_framework_alias
from hookbus.lifecycle import POINTS

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
SECTIONS = {"Lightning": "Lightning", "Hugging Face": "Hugging Face Trainer", "Keras": "Keras"}


def rows(framework: str) -> dict[str, str]:
    """Return the callbacks and points of the rows of a table in which they correspond one to one."""
    sections = PAGE.read_text().split("\n## ")
    text = next(part for part in sections if part.startswith(f"{SECTIONS[framework]}\n"))
    points: dict[str, str] = {}
    row = re.compile(r"^\| ((?:`on_\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)+) \|$", flags=re.MULTILINE)
    for callbacks, names in row.findall(text):
        points.update(zip(re.findall(r"\w+", callbacks), re.findall(r"\w+", names), strict=True))
    return points


@pytest.mark.parametrize("framework", FRAMEWORK_ALIASES)
def test_framework_aliases_match_the_documentation_page(framework: str) -> None:
    listed = rows(framework)
    assert len(listed) >= 6
    assert {name: FRAMEWORK_ALIASES[framework].get(name, name) for name in listed} == listed


def test_framework_aliases_refer_to_existing_points() -> None:
    assert {point for names in FRAMEWORK_ALIASES.values() for point in names.values()} <= set(POINTS)
    assert not {name for names in FRAMEWORK_ALIASES.values() for name in names} & set(POINTS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("on_train_batch_end", ("Lightning and Keras", "after_train_iter")),
        ("on_epoch_end", ("Hugging Face and Keras", "after_epoch")),
        ("on_validation_end", ("Lightning", "after_val")),
        ("on_fire", None),
    ],
)
def test_lookup_returns_the_frameworks_and_the_point(name: str, expected: tuple[str, str] | None) -> None:
    assert find_framework_alias(name) == expected
