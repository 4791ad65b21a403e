"""hookbus: an event bus for PyTorch training whose hooks are separately installable plugins.

Importing `hookbus` imports neither torch nor any plugin; public names are loaded on first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._imports import import_string as import_string
    from hookbus._imports import resolve_import as resolve_import
    from hookbus.bus import HookBus as HookBus
    from hookbus.config import RunConfig as RunConfig
    from hookbus.config import load_config as load_config
    from hookbus.hook import BaseHook as BaseHook
    from hookbus.hook import Hook as Hook
    from hookbus.hook import HookConfig as HookConfig
    from hookbus.hook import Priority as Priority
    from hookbus.lifecycle import Lifecycle as Lifecycle
    from hookbus.loop import Trainer as Trainer
    from hookbus.markers import hookimpl as hookimpl
    from hookbus.markers import hookspec as hookspec
    from hookbus.metrics import Metrics as Metrics
    from hookbus.records.recording import WriterHook as WriterHook
    from hookbus.run import Run as Run
    from hookbus.runfile.builder import HOOKS as HOOKS
    from hookbus.runfile.builder import build_hook as build_hook
    from hookbus.runfile.builder import build_hooks as build_hooks
    from hookbus.runfile.builder import get_default_hooks as get_default_hooks
    from hookbus.training.data import Splits as Splits
    from hookbus.when import between as between
    from hookbus.when import every as every
    from hookbus.when import last as last
    from hookbus.when import once as once
    from hookbus.writers import Writer as Writer

__version__ = "0.1.0"

_HOMES = {
    "BaseHook": "hook",
    "HOOKS": "runfile.builder",
    "Hook": "hook",
    "HookBus": "bus",
    "HookConfig": "hook",
    "Lifecycle": "lifecycle",
    "Metrics": "metrics",
    "Priority": "hook",
    "Run": "run",
    "RunConfig": "config",
    "Splits": "training.data",
    "Trainer": "loop",
    "Writer": "writers",
    "WriterHook": "records.recording",
    "between": "when",
    "build_hook": "runfile.builder",
    "build_hooks": "runfile.builder",
    "every": "when",
    "get_default_hooks": "runfile.builder",
    "hookimpl": "markers",
    "hookspec": "markers",
    "import_path": "_imports",
    "imported": "_imports",
    "last": "when",
    "load_config": "config",
    "once": "when",
}
_WITH_TORCH = ("Splits", "Trainer", "WriterHook")
__all__ = [name for name in _HOMES if name not in _WITH_TORCH]  # `from hookbus import *` must not import torch


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hookbus' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hookbus.{_HOMES[name]}"), name)
