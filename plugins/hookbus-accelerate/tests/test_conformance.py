"""Checks that each bridge must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed: run `make bridges HOST=accelerate`")

from hookbus.testing import bridge_conformance

from .adapter import AccelerateAdapter


@pytest.mark.parametrize("check", bridge_conformance(AccelerateAdapter()), ids=str)
def test_bridge(check: Any, tmp_path: Path) -> None:
    check(tmp_path)
