"""Common keys that the hooks of the project refuse."""

from __future__ import annotations

from typing import Any

from docs.generating.tables import table
from hookbus import HookBus, discovery
from hookbus._utils.known_keys import HOOK_SETTINGS
from hookbus.errors import HookbusError

__all__ = ["REQUIRED_SETTINGS", "refused_keys"]

KEYS: dict[str, Any] = {"frequency": 7, "when": "every(7)"}
"""Common keys, and a value of each that is not its default."""

REQUIRED_SETTINGS: dict[str, dict[str, Any]] = {
    "accumulation": {"schedule": {1: 1, 2: 2}},
    "empty_cache": {"after_iter": True},
    "freeze": {"modules": ["0"]},
    "pipeline_switch": {"switch_epoch": 1, "switch_pipeline": "builtins:list"},
}
"""Settings without which a hook cannot be built, or accepts fewer keys."""


def refused_keys() -> str:
    """Return the table of the hooks that accept each common key, as determined by registering them."""
    rows = ((f"`{name}`", *(_accepts(name, key) for key in KEYS)) for name in sorted(HOOK_SETTINGS))
    return table(("hook", *(f"`{key}`" for key in KEYS)), rows)


def _accepts(name: str, key: str) -> str:
    cls = discovery.load_entry(discovery.find_entry(name))
    try:
        HookBus([cls({**REQUIRED_SETTINGS.get(name, {}), key: KEYS[key]})])
    except HookbusError as error:
        if key not in str(error):
            raise
        return "refused"
    return "accepted"
