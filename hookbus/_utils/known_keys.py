"""Packages and hooks of the hookbus project and the keys of run files, for messages that name them.

No plugin is imported for a message: `tests/generate.py` derives `known_keys.json` from the packages.
"""

from __future__ import annotations

import json
from importlib import resources

_KEYS = json.loads(resources.files(__package__).joinpath("known_keys.json").read_text())

TOP_LEVEL_KEYS: list[str] = _KEYS["top_level"]
"""Keys at the top level of a run file."""

SECTION_KEYS: dict[str, list[str]] = _KEYS["sections"]
"""Keys of each section of a run file."""

COMMON_KEYS: list[str] = _KEYS["common"]
"""Keys of every hook."""

PUBLISHED_HOOKS: dict[str, dict[str, str]] = _KEYS["packages"]
"""Class of each hook, by package and by name of the hook."""

HOOK_SETTINGS: dict[str, list[str]] = _KEYS["hooks"]
"""Settings of each hook, without the common keys."""
