"""The conformance check passes for a small trainer, and each fault of its bridge fails the check of its subject."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookbus.testing import bridge_conformance
from hookbus.testing.bridges.conformance import BridgeCheck
from tests.foreign_trainer import ForeignAdapter

CHECKS = bridge_conformance(ForeignAdapter())


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_bridge_passes(check: BridgeCheck, published: Path, tmp_path: Path) -> None:
    check(tmp_path)
