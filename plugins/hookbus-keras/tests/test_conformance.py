"""Keras behaves like the Trainer of hookbus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

from hookbus.testing import bridge_conformance

from .adapter import KerasAdapter


@pytest.mark.parametrize("check", bridge_conformance(KerasAdapter()), ids=str)
def test_bridge(check: Callable[[Path], None], tmp_path: Path) -> None:
    check(tmp_path)
