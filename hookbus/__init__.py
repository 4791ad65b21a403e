"""hookbus: an event bus for PyTorch training whose hooks are separately installable plugins.

Importing `hookbus` imports neither torch nor any plugin; public names are loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._config.hooks import HOOK_REGISTRY as HOOK_REGISTRY
    from hookbus._config.hooks import HOOKS as HOOKS
    from hookbus._config.hooks import HookRegistry as HookRegistry
    from hookbus._config.hooks import build_hook as build_hook
    from hookbus._config.hooks import build_hooks as build_hooks
    from hookbus._config.hooks import get_default_hooks as get_default_hooks
    from hookbus._config.load import load_config as load_config
    from hookbus._config.models import RunConfig as RunConfig
    from hookbus._events.actions import actionspec as actionspec
    from hookbus._events.conditions import for_loader as for_loader
    from hookbus._events.conditions import where as where
    from hookbus._events.markers import hookimpl as hookimpl
    from hookbus._events.markers import hookspec as hookspec
    from hookbus._events.points import CounterView as CounterView
    from hookbus._events.points import Unit as Unit
    from hookbus._events.schedules import Schedule as Schedule
    from hookbus._events.schedules import between as between
    from hookbus._events.schedules import every as every
    from hookbus._events.schedules import last as last
    from hookbus._events.schedules import once as once
    from hookbus._run.history import History as History
    from hookbus._run.requests import Request as Request
    from hookbus._run.results import BestResult as BestResult
    from hookbus._run.run import Run as Run
    from hookbus._utils.deprecations import deprecated as deprecated
    from hookbus._utils.durations import Duration as Duration
    from hookbus._utils.durations import parse_duration as parse_duration
    from hookbus._utils.imports import import_string as import_string
    from hookbus._utils.imports import resolve_import as resolve_import
    from hookbus.bus import HookBus as HookBus
    from hookbus.data.resumable_loader import Splits as Splits
    from hookbus.hook import BaseHook as BaseHook
    from hookbus.hook import Direction as Direction
    from hookbus.hook import Hook as Hook
    from hookbus.hook import HookConfig as HookConfig
    from hookbus.hook import Priority as Priority
    from hookbus.lifecycle import Lifecycle as Lifecycle
    from hookbus.metrics.results import Metrics as Metrics
    from hookbus.needs import Needs as Needs
    from hookbus.trainer.trainer import Trainer as Trainer
    from hookbus.writers.hook import WriterHook as WriterHook
    from hookbus.writers.metric_recorder import WriterConfig as WriterConfig
    from hookbus.writers.writer import Writer as Writer

__version__ = "0.1.0"

_MODULES = map_names(
    {
        "hookbus._config.hooks": "HOOKS HOOK_REGISTRY HookRegistry build_hook build_hooks get_default_hooks",
        "hookbus._config.load": "load_config",
        "hookbus._config.models": "RunConfig",
        "hookbus._events.actions": "actionspec",
        "hookbus._events.conditions": "for_loader where",
        "hookbus._events.markers": "hookimpl hookspec",
        "hookbus._events.points": "CounterView Unit",
        "hookbus._events.schedules": "Schedule between every last once",
        "hookbus._run.history": "History",
        "hookbus._run.requests": "Request",
        "hookbus._run.results": "BestResult",
        "hookbus._run.run": "Run",
        "hookbus._utils.deprecations": "deprecated",
        "hookbus._utils.durations": "Duration parse_duration",
        "hookbus._utils.imports": "import_string resolve_import",
        "hookbus.bus": "HookBus",
        "hookbus.data.resumable_loader": "Splits",
        "hookbus.hook": "BaseHook Direction Hook HookConfig Priority",
        "hookbus.lifecycle": "Lifecycle",
        "hookbus.metrics.results": "Metrics",
        "hookbus.needs": "Needs",
        "hookbus.trainer.trainer": "Trainer",
        "hookbus.writers.hook": "WriterHook",
        "hookbus.writers.metric_recorder": "WriterConfig",
        "hookbus.writers.writer": "Writer",
    }
)
_WITH_TORCH = ("Splits", "Trainer", "WriterConfig", "WriterHook")
__all__ = [name for name in _MODULES if name not in _WITH_TORCH]  # `from hookbus import *` must not import torch
__getattr__ = lazy_names(__name__, _MODULES)
