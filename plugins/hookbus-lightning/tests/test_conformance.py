"""Conformance of the bridges to the Trainer and to Fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from hookbus.testing import bridge_conformance

from .adapter import FabricAdapter, TrainerAdapter

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")  # resumed trainings


@pytest.mark.parametrize("check", bridge_conformance(TrainerAdapter()), ids=str)
def test_trainer(check: Any, tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.parametrize("check", bridge_conformance(FabricAdapter()), ids=str)
def test_fabric(check: Any, tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["pytorch_lightning", "lightning_fabric"])
def test_package_of_another_name(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed: run `make bridges HOST=lightning`")
    adapter: Any = TrainerAdapter(name) if name == "pytorch_lightning" else FabricAdapter(name)
    bridge_conformance(adapter)(tmp_path)
