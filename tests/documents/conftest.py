from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _skip_fsync() -> Iterator[None]:
    # Durability after a power failure is not tested here, and fsync is slow on some file systems.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
