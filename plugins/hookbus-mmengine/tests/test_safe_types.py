"""Types of checkpoints of MMEngine that torch loads without executing code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.logging import HistoryBuffer

from hookbus_mmengine.safe_types import STATISTICS, allow_checkpoint_types, get_statistic


class Attribute:
    """Object whose pickle asks for an attribute of another object."""

    def __init__(self, owner: Any, name: str) -> None:
        self.arguments = owner, name

    def __reduce__(self) -> Any:
        return getattr, self.arguments


def test_message_hub_is_loaded(tmp_path: Path) -> None:
    allow_checkpoint_types()
    buffer = HistoryBuffer([1.0, 2.5], [1, 2])
    torch.save({"buffer": buffer, "score": np.float64(0.5), "number": np.int64(3)}, tmp_path / "checkpoint.pth")
    loaded = torch.load(tmp_path / "checkpoint.pth", weights_only=True)
    assert (loaded["buffer"].current(), loaded["buffer"].mean()) == (2.5, pytest.approx(3.5 / 3))
    assert (loaded["score"], loaded["number"]) == (0.5, 3)


def test_other_attributes_are_not_loaded(tmp_path: Path) -> None:
    allow_checkpoint_types()
    torch.save(Attribute(HistoryBuffer, "register_statistics"), tmp_path / "checkpoint.pth")
    with pytest.raises(TypeError, match="attribute that is not loaded, got 'register_statistics'"):
        torch.load(tmp_path / "checkpoint.pth", weights_only=True)


@pytest.mark.parametrize("owner", [np, HistoryBuffer([1.0], [1])])
def test_attributes_of_other_objects_are_not_loaded(owner: Any) -> None:
    with pytest.raises(TypeError, match="got 'min'"):
        get_statistic(owner, "min")


def test_statistics_are_those_of_mmengine() -> None:
    assert set(HistoryBuffer([1.0], [1])._statistics_methods) >= STATISTICS
    assert get_statistic(HistoryBuffer, "mean") is HistoryBuffer.mean
