"""Fixtures for training loops with Accelerate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed: run `make bridges HOST=accelerate`")

from accelerate.state import AcceleratorState, GradientState  # only if it is installed


@pytest.fixture(autouse=True)
def fresh_accelerator_state() -> Iterator[None]:
    """Reset the state that all accelerators of a process share."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
