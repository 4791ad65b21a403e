"""Fixtures of the tests with MMEngine."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _close_logs() -> Iterator[None]:
    """Close the log files, which a Runner leaves open until the end of the process."""
    yield
    if "mmengine.logging" in sys.modules:
        from mmengine.logging import MMLogger

        for logger in MMLogger._instance_dict.values():
            for handler in logger.handlers:
                handler.close()


@pytest.fixture(autouse=True)
def _reset_default_seed() -> None:
    """Remove the seed that a Runner which has resumed leaves in the default of `randomness`, for the next Runner."""
    if "mmengine.runner" in sys.modules:
        from mmengine.runner import Runner

        inspect.signature(Runner).parameters["randomness"].default["seed"] = None
