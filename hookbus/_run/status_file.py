"""Content of `status.json`: validation of what was read."""

from __future__ import annotations

from typing import Any

from hookbus._utils.files import parse_json
from hookbus._utils.schema import any_value, integer, list_of, mapping_of, nullable, number, record, string

MAX_STATUS_SIZE = 16 << 20
"""Maximum size in bytes: the metrics and the outputs of a run are listed in the file."""

_check_status = record(
    {"outcome": string()},
    {
        # A run that was started without an ID has an empty one.
        "run": string("[0-9A-Za-z]*", 64),
        "checkpoint": nullable(string()),
        "mode": string(),
        "exit_code": nullable(integer()),
        "reasons": list_of(string(maximum=MAX_STATUS_SIZE)),
        "error": nullable(string(maximum=MAX_STATUS_SIZE)),
        "epochs_done": integer(),
        "iters_done": integer(),
        "steps_done": integer(),
        "best": mapping_of(record({"value": nullable(number())})),
        "metrics": mapping_of(nullable(number())),
        "outputs": list_of(string()),
        "directories": list_of(string()),
        "about": mapping_of(any_value),
    },
)


def parse_status(data: bytes) -> dict[str, Any]:
    """Return the content of `status.json`, validated. Keys that this version does not know are kept.

    Args:
        data: Content of the file.

    Raises:
        ValueError: If it is not valid JSON, or a value is invalid; the message contains the key.
    """
    status = parse_json(data)
    _check_status(status, "")
    return dict(status)
