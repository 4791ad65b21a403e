"""hookbus in MMEngine: hooks of hookbus in a Runner, and hooks of MMEngine in the Trainer of hookbus.

MMEngine is imported with the first use of a class.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus_mmengine.bridge import MMEngineBridge as MMEngineBridge
    from hookbus_mmengine.config_hook import HookbusHook as HookbusHook
    from hookbus_mmengine.foreign_hook import MMEngineHook as MMEngineHook

_MODULES = {"HookbusHook": "config_hook", "MMEngineBridge": "bridge", "MMEngineHook": "foreign_hook"}
__all__ = ["HookbusHook", "MMEngineBridge", "MMEngineHook"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
