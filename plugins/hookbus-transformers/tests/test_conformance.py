"""Conformance check of the bridge."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from hookbus.testing import bridge_conformance
from hookbus.testing.bridges.conformance import BridgeCheck

from .adapter import TransformersAdapter


@pytest.mark.slow
@pytest.mark.parametrize("check", bridge_conformance(TransformersAdapter()), ids=str)
def test_bridge_passes(check: BridgeCheck, tmp_path: Path) -> None:
    check(tmp_path)
