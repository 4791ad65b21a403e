"""The pages of documentation: what they show works, and what is made from the code is as the code is."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest

from docs import generate
from tests.pages import PAGES, ROOT, Reader, blocks

LONG = {"README.md", "index.md", "tutorial.md", "resume.md", "publishing.md"}
"""Pages whose examples train for seconds."""

ALL = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] if page.name in LONG else [])
    for page in PAGES
]


@pytest.mark.parametrize("page", ALL)
def test_everything_on_the_page_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(logging.getLogger("hookbus"), "handlers", [])

    Reader(page).follow()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    untold = [block.line for block in blocks(page) if not hasattr(Reader, f"do_{block.language}")]

    assert not untold, f"{page.name}: tag the blocks in lines {untold}; text is for what is only looked at"
    assert page.read_text().count("```") == 2 * len(blocks(page)), f"{page.name}: a fence is not closed"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_what_is_made_from_the_code_is_up_to_date(page: Path) -> None:
    text = page.read_text()

    assert text == generate.page_text(text), "run `make generate`"


def test_every_generated_part_stands_on_a_page() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))

    assert set(re.findall(r"<!-- generated: (\S+) -->", text)) == set(generate.PARTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = [each.partition("#")[0] for each in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text())]
    lost = [target for target in targets if target and not (page.parent / target).exists()]

    assert not lost
