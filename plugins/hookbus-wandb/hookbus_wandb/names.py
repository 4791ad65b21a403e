"""The names that W&B takes."""

from __future__ import annotations

import re

from hookbus.records.names import safe_name

__all__ = ["STEP", "artifact_name", "stored"]

STEP = "trainer/step"
"""The number under which each record of W&B has its step: the horizontal axis of everything else."""

LONGEST, LONGEST_ARTIFACT = 200, 128
FORBIDDEN = re.compile(rf"^(?:_step|_runtime|_timestamp|_wandb|{STEP})$|[\x00-\x1f]")
"""Names of W&B's own, and control characters."""
OF_ARTIFACTS = re.compile(r"[^\w.\-]", re.ASCII)


def stored(name: str) -> str:
    """The name under which W&B has a number or a picture: as `hookbus.records.names.safe_name` makes it."""
    return safe_name(name, FORBIDDEN, LONGEST)


def artifact_name(name: str) -> str:
    """The name of an artifact, likewise: letters, digits and `_ - .`, 128 at most."""
    return safe_name(name, OF_ARTIFACTS, LONGEST_ARTIFACT)
