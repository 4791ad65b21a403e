"""Distributions of the core and all plugins, which the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest
from releasing.projects import find_projects

from tests.packaging.toys import build_sdist, build_wheel, unpack
from tests.pages import ROOT


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution of each package, and the wheel that is built from it."""
    result, sources = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("sources")
    for folder in find_projects(ROOT).values():
        build_wheel(unpack(build_sdist(ROOT / folder, result), sources), result)
    return result
