"""The conformance check of bridges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from hookbus.testing import bridge_conformance

from .adapter import MMEngineAdapter


@pytest.mark.slow
@pytest.mark.parametrize("check", bridge_conformance(MMEngineAdapter()), ids=str)
def test_bridge_conforms(check: Any, tmp_path: Path) -> None:
    check(tmp_path)
