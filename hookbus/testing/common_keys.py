"""Check that every common key of a hook affects one of its listeners, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus._events.checks import Implementation
from hookbus._events.failures import get_policy
from hookbus._events.listeners import resolve_priority
from hookbus.bus import HookBus
from hookbus.errors import HookbusError
from hookbus.hook import Hook
from hookbus.testing.states import ensure, explain_errors

VALUES: dict[str, tuple[Any, Any]] = {
    "frequency": (7, 11),
    "when": ("every(7)", "every(11)"),
    "priority": (3, 4),
    "on_error": ("warn", "disable"),
}
"""Two values of each common key, because one of them may equal the default of the hook."""

Effect = tuple[str, int, str, str]
"""Point or action of an implementation, with its priority, schedule and policy for exceptions."""


def check_common_keys(cls: type[Hook], settings: Mapping[str, Any]) -> None:
    """Check that each common key affects a listener of a hook, or is refused with the hook, the key and the value.

    No training is run. Hooks with methods whose point is not declared are skipped: a key may affect these methods.
    """
    name, bus = cls.__name__, HookBus()
    hook = cls(dict(settings))
    if HookBus([hook]).pm.members[hook.name].unmatched:
        return
    initial = _list_effects(bus, cls(dict(settings)))
    for key, values in VALUES.items():
        ensure(
            any(_has_effect(bus, cls, settings, {key: value}, initial) for value in values),
            f"{name} accepts `{key}: {values[0]}`, but no listener changes. Pass the settings to super().__init__, or "
            f"reject `{key}` in a validator of the Config.",
        )
    with explain_errors(f"{name} refuses `frequency: 1`, which selects every event: ", (HookbusError,)):
        _list_effects(bus, cls({**settings, "frequency": 1}))


def _has_effect(
    bus: HookBus, cls: type[Hook], settings: Mapping[str, Any], setting: Mapping[str, Any], initial: list[Effect]
) -> bool:
    """Return whether a common key affects a listener or is refused."""
    try:
        return _list_effects(bus, cls({**settings, **setting})) != initial
    except HookbusError as error:
        _check_message(cls(dict(settings)), setting, str(error))
        return True


def _check_message(hook: Hook, setting: Mapping[str, Any], message: str) -> None:
    """Check that the message of an error names the hook, the key and the value."""
    cls = type(hook).__name__
    ((key, value),) = setting.items()
    missing = [part for part in (key, str(value)) if part not in message]
    if cls not in message and repr(hook.name) not in message:
        missing.insert(0, cls)
    ensure(
        not missing,
        f"{cls} refuses `{key}: {value}` with a message that does not contain {' and '.join(map(repr, missing))}: "
        f"{message}",
    )


def _list_effects(bus: HookBus, hook: Hook) -> list[Effect]:
    """Register a hook for a moment and return what common keys determine for each of its implementations."""
    bus.register(hook)
    implementations = bus.pm.members[hook.name].implementations
    effects = [_get_effect(bus, target, implementation) for target, implementation in implementations.items()]
    bus.unregister(hook)
    return effects


def _get_effect(bus: HookBus, target: str, implementation: Implementation) -> Effect:
    if target not in bus.points:
        return target, resolve_priority(implementation, None)[0], "", ""
    (listener,) = bus.table.listeners(target, bus.current)
    return target, listener.priority, repr(listener.schedule), get_policy(listener.plugin, RuntimeError())
