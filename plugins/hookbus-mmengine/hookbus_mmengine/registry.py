"""Registry that MMEngine imports for `dict(type="hookbus_mmengine.EMAHook", ...)` in `custom_hooks`."""

from __future__ import annotations

from functools import partial
from typing import Any

from mmengine.registry import HOOKS, Registry

from hookbus_mmengine.config_hook import HookbusHook


class HookRegistry(Registry):  # type: ignore[misc]
    """Registry of all installed hooks of hookbus, by class name or type, each in a `HookbusHook`."""

    def get(self, key: str) -> Any:
        """Return a function that builds a `HookbusHook` from the settings of one hook.

        Args:
            key: Name of the hook, with or without the scope of the registry.
        """
        name = key.removeprefix(f"{self.scope}.")
        return HookbusHook if name == HookbusHook.__name__ else partial(build_entry, name)


def build_entry(type_: str, **settings: Any) -> HookbusHook:
    """Return an entry of `custom_hooks` with one hook.

    Args:
        type_: Class name or type of the hook.
        settings: Its settings.
    """
    return HookbusHook([{"type": type_, **settings}])


HOOKBUS_HOOKS = HookRegistry("hook of hookbus", parent=HOOKS, scope="hookbus_mmengine")
