"""Valid names of W&B records and artifacts."""

from __future__ import annotations

import re

from hookbus.writers import sanitize_name

STEP = "trainer/step"
"""Name of the scalar that contains the step of each row: the x-axis of all charts."""

MAX_LENGTH, MAX_ARTIFACT_LENGTH = 200, 128
FORBIDDEN = re.compile(rf"^(?:_step|_runtime|_timestamp|_wandb|{STEP})$|[\x00-\x1f]")
"""Names that W&B reserves, and control characters."""
FORBIDDEN_IN_ARTIFACTS = re.compile(r"[^\w.\-]", re.ASCII)


def to_wandb_name(name: str) -> str:
    """Return the name of a record in W&B, made valid by `hookbus.writers.tags.sanitize_name`."""
    return sanitize_name(name, FORBIDDEN, MAX_LENGTH)


def to_artifact_name(name: str) -> str:
    """Return the name of an artifact: at most 128 letters, digits and `_ - .`."""
    return sanitize_name(name, FORBIDDEN_IN_ARTIFACTS, MAX_ARTIFACT_LENGTH)
