"""Features of pluggy that a bus does not support. Each raises an error with the reason."""

from __future__ import annotations

from typing import Any, NoReturn

from hookbus.errors import HookError

_LISTED = "it lists what load_setuptools_entrypoints has loaded"
_LIST_HOOKS = "Read bus.hooks, or run `hookbus hooks` to list the installed packages."
_NO_DISPATCH = "events are not dispatched through pluggy"
_LISTEN = "Register a listener with bus.on, or record the events with hookbus.testing.RecordingBus."


class UnsupportedFeatures:
    """Methods of pluggy's PluginManager that would have no effect on a bus."""

    def add_hookcall_monitoring(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: events are not dispatched through pluggy."""
        raise _unsupported("add_hookcall_monitoring", _NO_DISPATCH, _LISTEN)

    def enable_tracing(self) -> NoReturn:
        """Raise an error: events are not dispatched through pluggy."""
        raise _unsupported("enable_tracing", _NO_DISPATCH, _LISTEN)

    def load_setuptools_entrypoints(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: installed hooks are registered by name only."""
        reason, action = "installed hooks are registered by name only", "Register hookbus.build_hook({'type': ...})."
        raise _unsupported("load_setuptools_entrypoints", reason, action)

    def list_plugin_distinfo(self) -> NoReturn:
        """Raise an error: no plugin is loaded by `load_setuptools_entrypoints`."""
        raise _unsupported("list_plugin_distinfo", _LISTED, _LIST_HOOKS)

    def list_plugin_distributions(self) -> NoReturn:
        """Raise an error: no plugin is loaded by `load_setuptools_entrypoints`."""
        raise _unsupported("list_plugin_distributions", _LISTED, _LIST_HOOKS)


def _unsupported(method: str, reason: str, action: str) -> HookError:
    return HookError(f"bus.pm.{method} is not supported: {reason}. {action}")
