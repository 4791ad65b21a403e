"""Namespace of the installed hook classes, the base class, the registry and the functions that build hooks.

`from hookbus.hooks import EMAHook` loads the class by its entry point.
"""

from __future__ import annotations

import sys
from opcode import opmap
from types import FrameType
from typing import TYPE_CHECKING, Any

import hookbus

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._config.hooks import HOOK_REGISTRY as HOOK_REGISTRY
    from hookbus._config.hooks import HOOKS as HOOKS
    from hookbus._config.hooks import HookRegistry as HookRegistry
    from hookbus._config.hooks import build_hook as build_hook
    from hookbus._config.hooks import build_hooks as build_hooks
    from hookbus._config.hooks import get_default_hooks as get_default_hooks
    from hookbus.hook import BaseHook as BaseHook
    from hookbus.hook import Hook as Hook
    from hookbus.hook import HookConfig as HookConfig
    from hookbus.hook import Priority as Priority

MODULES = ("hookbus.hook", "hookbus._config.hooks")
CORE_NAMES = frozenset(name for name, module in hookbus._MODULES.items() if module in MODULES)
"""Names of hookbus itself. No installed package can replace them."""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name in CORE_NAMES:
        return getattr(hookbus, name)
    from hookbus.discovery import find_entry, load_entry
    from hookbus.errors import PluginError

    try:
        return load_entry(find_entry(name))
    except PluginError as error:
        # An import statement replaces an AttributeError by "cannot import name" and drops its message. Everything else,
        # such as `hasattr`, and pickle, which searches all modules for the objects that it saves, requires one.
        if _is_import_statement(sys._getframe(1)):
            raise ImportError(str(error), name=name) from error
        raise AttributeError(str(error), name=name) from error


def _is_import_statement(frame: FrameType) -> bool:
    """Return whether a frame executes `from ... import ...`."""
    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def __dir__() -> list[str]:
    from hookbus.discovery import list_entries

    return sorted({*CORE_NAMES, *(plugin.class_name for plugin in list_entries())})
