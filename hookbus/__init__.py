"""hookbus: an event bus for PyTorch training whose hooks are separately installable plugins.

Importing this imports neither torch nor any plugin; names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus.bus import HookBus as HookBus
    from hookbus.hook import BaseHook as BaseHook
    from hookbus.hook import Hook as Hook
    from hookbus.hook import HookConfig as HookConfig
    from hookbus.hook import Priority as Priority
    from hookbus.markers import hookimpl as hookimpl
    from hookbus.run import Run as Run
    from hookbus.when import between as between
    from hookbus.when import every as every
    from hookbus.when import last as last
    from hookbus.when import once as once

__version__ = "0.1.0"

_HOMES = {
    "BaseHook": "hook",
    "Hook": "hook",
    "HookBus": "bus",
    "HookConfig": "hook",
    "Priority": "hook",
    "Run": "run",
    "between": "when",
    "every": "when",
    "hookimpl": "markers",
    "last": "when",
    "once": "when",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hookbus' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hookbus.{_HOMES[name]}"), name)
