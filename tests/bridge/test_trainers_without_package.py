"""Examples of the page about trainers without a package, with each of these trainers that is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks

EXAMPLES = {block.file: block.text for block in blocks(ROOT / "docs/bridges-other.md", "py") if block.file is not None}


def test_page_has_an_example_of_each_trainer() -> None:
    assert sorted(EXAMPLES) == ["with_composer.py", "with_torchtnt.py"]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["composer", "torchtnt"])
def test_example_runs(trainer: str, tmp_path: Path) -> None:
    if find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed")
    name = f"with_{trainer}.py"
    (tmp_path / name).write_text(EXAMPLES[name])
    result = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
