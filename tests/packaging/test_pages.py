"""The guides and recipes in an environment with the published packages instead of the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Environment
from tests.packaging.toys import remove_sources
from tests.pages import ROOT, blocks, iter_commands

SCRIPT = Path(__file__).with_name("follow_page.py")
PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in ("own-data", "sweeps", "inference", "lifecycle", "notebooks")),
    *sorted(ROOT.glob("docs/recipes/*.md")),
]

# `make package` runs them before a release; tests/test_docs.py executes the same blocks with the sources.
pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel_environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Create an environment with the wheels of all packages that need no other trainer, without the sources."""
    environment = Environment(tmp_path_factory.mktemp("wheel_environment"))
    remove_sources(environment)
    environment.install(*dist.glob("*.whl"))
    return environment


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_can_be_followed(wheel_environment: Environment, page: Path) -> None:
    done = wheel_environment.python(str(SCRIPT), str(page))

    assert done.returncode == 0, done.stdout + done.stderr
    runnable = [block for block in blocks(page, "python") if not block.missing]
    lines = [line for block in blocks(page, "console") for line, _ in iter_commands(block.text)]
    commands = [line for line in lines if line.startswith("hookbus ")]
    assert done.stdout.endswith(f"{len(runnable)} blocks, {len(commands)} commands\n")
