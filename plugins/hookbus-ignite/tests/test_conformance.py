"""Checks that each bridge must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ignite", reason="ignite is not installed: run `make bridges HOST=ignite`")

from hookbus.testing import bridge_conformance

from .adapter import IgniteAdapter


@pytest.mark.parametrize("check", bridge_conformance(IgniteAdapter()), ids=str)
def test_bridge(check: Any, tmp_path: Path) -> None:
    check(tmp_path)
