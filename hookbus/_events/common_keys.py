"""Check that every common key of a hook, and an overridden `should_trigger`, affects at least one of its listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookbus._events.checks import ConfiguredPlugin, Implementation, is_configured, registration_error
from hookbus._events.listeners import (
    applies_frequency,
    get_predicate,
    overrides_should_trigger,
    resolve_own_schedule,
)
from hookbus._events.points import Point
from hookbus._events.schedules import NEVER

Listeners = Sequence[tuple[Implementation, Point]]


def check_common_keys(
    implementations: Sequence[Implementation], plugin: object, name: str, points: Mapping[str, Point]
) -> None:
    """Check that every common key, and an overridden `should_trigger`, affects at least one listener of a hook.

    Raises:
        RegistrationError: If a key affects none. The message states the reason.
    """
    if not is_configured(plugin):
        return
    listeners = [(item, points[item.target]) for item in implementations if item.target in points]
    problem = (
        _find_priority_problem(implementations, plugin.config.priority)
        or _find_on_error_problem(listeners, plugin)
        or _find_when_problem(listeners, plugin)
        or _find_frequency_problem(listeners, plugin)
        or _find_should_trigger_problem(listeners, plugin)
    )
    if problem:
        raise registration_error(plugin, name, problem)


def check_priority_override(
    implementations: Sequence[Implementation], plugin: object, name: str, priority: int | None
) -> None:
    """Check that a priority that is passed at registration affects a listener.

    Raises:
        RegistrationError: If the plugin has no listener.
    """
    if problem := _find_priority_problem(implementations, priority):
        raise registration_error(plugin, name, problem)


def _find_priority_problem(implementations: Sequence[Implementation], priority: int | None) -> str | None:
    if priority is None or implementations:
        return None
    return f"`priority` orders listeners, but this hook has none, got {priority}. Remove `priority`."


def _find_on_error_problem(listeners: Listeners, plugin: ConfiguredPlugin) -> str | None:
    # Exceptions of actions always propagate, which equals "raise".
    policy = plugin.config.on_error
    if policy in (None, "raise") or listeners:
        return None
    return f"`on_error` applies to listeners, but this hook has none, got {policy!r}. Remove `on_error`."


def _find_when_problem(listeners: Listeners, plugin: ConfiguredPlugin) -> str | None:
    when = plugin.config.when
    if when is None or any(item.options.get("when") is not None for item, _ in listeners):
        return None
    problem = f"`when` replaces the schedules of listeners, but this hook has no scheduled listener, got {when!r}."
    affected = any(applies_frequency(plugin, item.options, point) for item, point in listeners)
    return f"{problem} {'Set `frequency` instead' if affected else 'Remove `when`'}."


def _find_frequency_problem(listeners: Listeners, plugin: ConfiguredPlugin) -> str | None:
    if plugin.config.frequency in (None, 1):
        return None
    affected = [item for item, point in listeners if applies_frequency(plugin, item.options, point)]
    if not affected:
        reason = _explain_unaffected(listeners, plugin)
    elif all(_is_never_due(item, plugin) for item in affected):
        reason = f"other settings disable {_join_methods(affected)}. Remove `frequency`."
    else:
        return None
    return f"`frequency` has no effect, got {plugin.config.frequency}: {reason}"


def _find_should_trigger_problem(listeners: Listeners, plugin: ConfiguredPlugin) -> str | None:
    if not overrides_should_trigger(plugin):
        return None
    if any(get_predicate(plugin, item.options, point) is not None for item, point in listeners):
        return None
    reason = _explain_required(listeners) or "no listener counts iterations, steps or epochs."
    return f"should_trigger has no effect: {reason} Remove should_trigger, and test the condition in a listener."


def _explain_unaffected(listeners: Listeners, plugin: ConfiguredPlugin) -> str:
    """Return why `frequency` affects no listener, and the fix."""
    if reason := _explain_required(listeners):
        return f"{reason} Remove `frequency`."
    units = sorted({"iter" if point.unit == "batch" else str(point.unit) for _, point in listeners if point.unit})
    if not units:
        return "no listener counts iterations, steps or epochs. Remove `frequency`."
    return (
        f"no listener counts in the unit {plugin.unit!r} of the hook. Set its class attribute `unit` to "
        f"{' or '.join(map(repr, units))}, or remove `frequency`."
    )


def _explain_required(listeners: Listeners) -> str:
    """Return the reason if the author has excluded listeners from `frequency`, "" otherwise."""
    required = [item for item, _ in listeners if item.options.get("frequency") is False]
    return f"every event is required by {_join_methods(required)}." if required else ""


def _is_never_due(implementation: Implementation, plugin: ConfiguredPlugin) -> bool:
    schedule = resolve_own_schedule(implementation.options.get("when"), plugin.config)
    return schedule is not None and schedule.next_due(0, None) == NEVER


def _join_methods(implementations: Sequence[Implementation]) -> str:
    return ", ".join(item.method for item in implementations)
