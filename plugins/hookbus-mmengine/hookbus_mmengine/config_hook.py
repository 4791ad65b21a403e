"""Hook of MMEngine for `custom_hooks`, which contains hooks of hookbus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from mmengine.registry import HOOKS

from hookbus import HookBus, build_hooks
from hookbus.errors import ConfigError
from hookbus_mmengine.bridge import MMEngineBridge
from hookbus_mmengine.callbacks import BridgeHook
from hookbus_mmengine.passes import observe_passes
from hookbus_mmengine.safe_types import allow_checkpoint_types


@HOOKS.register_module()
class HookbusHook(BridgeHook):
    """Hooks of hookbus in the `custom_hooks` of a Runner. All of a Runner are hooks of one bus.

    Args:
        hooks: Hooks, or their settings with the key `type`.
        options: Arguments of `bus.attach`, such as `work_dir`.

    Raises:
        ConfigError: If a setting is invalid.
    """

    def __init__(self, hooks: Sequence[Any] | Mapping[str, Any], **options: Any) -> None:
        allow_checkpoint_types()
        observe_passes()
        self._hooks, self._options = build_hooks(hooks), options
        self._is_built = False

    def before_run(self, runner: Any) -> None:
        """Build the bridge, unless it exists, and connect it."""
        self._build(runner)
        super().before_run(runner)

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Build the bridge, unless it exists, and keep the state of a checkpoint that was loaded before a training."""
        self._build(runner)
        super().after_load_checkpoint(runner, checkpoint)

    def _build(self, runner: Any) -> None:
        """Build the bridge with the hooks of all entries, and remove the other entries from the Runner.

        Raises:
            ConfigError: If a hook needs what MMEngine does not offer, or two entries set an option differently.
        """
        if self._is_built:
            return
        entries = [hook for hook in runner.hooks if isinstance(hook, HookbusHook)]
        bus = HookBus(hook for entry in entries for hook in entry._hooks)
        super().__init__(MMEngineBridge(bus, runner, **_merge(entry._options for entry in entries)))
        self._is_built = True
        # They follow this one in the list over which the Runner is iterating.
        for entry in entries[1:]:
            runner.hooks.remove(entry)


def _merge(options: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options of several entries."""
    merged: dict[str, Any] = {}
    for name, value in chain.from_iterable(entry.items() for entry in options):
        if merged.setdefault(name, value) != value:
            raise ConfigError(
                [f"custom_hooks: {name} should have one value, got {merged[name]!r} and {value!r}. Remove one."]
            )
    return merged
