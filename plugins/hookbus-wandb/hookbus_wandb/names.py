"""Valid names of W&B records and artifacts."""

from __future__ import annotations

import re

from hookbus.records.names import safe_name

__all__ = ["STEP", "artifact_name", "stored"]

STEP = "trainer/step"
"""Name of the scalar that contains the step of each row: the x-axis of all charts."""

LONGEST, LONGEST_ARTIFACT = 200, 128
FORBIDDEN = re.compile(rf"^(?:_step|_runtime|_timestamp|_wandb|{STEP})$|[\x00-\x1f]")
"""Names that W&B reserves, and control characters."""
OF_ARTIFACTS = re.compile(r"[^\w.\-]", re.ASCII)


def stored(name: str) -> str:
    """Return the name of a record in W&B, made valid by `hookbus.records.names.safe_name`."""
    return safe_name(name, FORBIDDEN, LONGEST)


def artifact_name(name: str) -> str:
    """Return the name of an artifact: at most 128 letters, digits and `_ - .`."""
    return safe_name(name, OF_ARTIFACTS, LONGEST_ARTIFACT)
