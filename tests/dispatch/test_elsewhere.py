"""Names of other trainers, against the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookbus.dispatch.elsewhere import NAMES, named_elsewhere
from hookbus.lifecycle import POINTS

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
SECTIONS = {"Lightning": "Lightning", "Hugging Face": "Hugging Face Trainer", "Keras": "Keras"}


def rows(trainer: str) -> dict[str, str]:
    """The names and points of those rows of a table of the page in which they stand one for one."""
    sections = PAGE.read_text().split("\n## ")
    text = next(part for part in sections if part.startswith(f"{SECTIONS[trainer]}\n"))
    found: dict[str, str] = {}
    for theirs, ours in re.findall(r"^\| ((?:`on_\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)+) \|$", text, flags=re.MULTILINE):
        found.update(zip(re.findall(r"\w+", theirs), re.findall(r"\w+", ours), strict=True))
    return found


@pytest.mark.parametrize("trainer", NAMES)
def test_are_those_of_the_page(trainer: str) -> None:
    listed = rows(trainer)
    assert len(listed) >= 6
    assert {name: NAMES[trainer].get(name, name) for name in listed} == listed


def test_stand_for_points_that_there_are() -> None:
    assert {point for names in NAMES.values() for point in names.values()} <= set(POINTS)
    assert not {name for names in NAMES.values() for name in names} & set(POINTS)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("on_train_batch_end", ("Lightning and Keras", "after_train_iter")),
        ("on_epoch_end", ("Hugging Face and Keras", "after_epoch")),
        ("on_validation_end", ("Lightning", "after_val")),
        ("on_fire", None),
    ],
)
def test_are_told_with_whose_they_are(name: str, found: tuple[str, str] | None) -> None:
    assert named_elsewhere(name) == found
