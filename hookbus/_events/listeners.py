"""Conversion of an implementation to a listener: its priority, schedule and ordering constraints.

`check_listeners` and `check_common_keys` check at registration that these are valid, and that every common key of a
hook affects at least one of its listeners.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hookbus._events.checks import (
    ConfiguredPlugin,
    Implementation,
    Inspection,
    PluginConfig,
    configured_base,
    is_configured,
    registration_error,
)
from hookbus._events.conditions import as_condition
from hookbus._events.markers import Options
from hookbus._events.ordering import DEFAULT_PRIORITY, Listener
from hookbus._events.points import Point
from hookbus._events.schedules import NEVER, Schedule, every
from hookbus.errors import ConfigError


def build_listener(implementation: Implementation, point: Point, override: int | None) -> Listener:
    """Build the listener of an implementation."""
    number, source = resolve_priority(implementation, override)
    return Listener(
        hook=implementation.hook,
        plugin=implementation.plugin,
        point=point.name,
        call=implementation.call,
        argument_names=implementation.argument_names,
        accepts_kwargs=implementation.accepts_kwargs,
        priority=number,
        source=source,
        schedule=resolve_schedule(implementation.plugin, implementation.options, point),
        predicate=get_predicate(implementation.plugin, implementation.options, point),
        before=implementation.options.get("before", ()),
        after=implementation.options.get("after", ()),
    )


def resolve_priority(implementation: Implementation, override: int | None) -> tuple[int, str]:
    """Return the priority of an implementation and its origin.

    Settings of the user (at registration, in the config) take precedence over those of the hook author (marker, class).
    """
    plugin, own = implementation.plugin, implementation.options.get("priority")
    if override is not None:
        return override, "register(priority=)"
    if is_configured(plugin) and plugin.config.priority is not None:
        return plugin.config.priority, "config"
    if own is not None:
        return own, "@hookimpl"
    if is_configured(plugin):
        return plugin.priority, f"class {type(plugin).__name__}"
    return DEFAULT_PRIORITY, "default"


def resolve_schedule(plugin: object, options: Options, point: Point) -> Schedule | None:
    """Return the schedule of a listener: its own schedule, combined with `when` and `frequency` of the config.

    Raises:
        ConfigError: If a schedule is invalid.
    """
    config = plugin.config if is_configured(plugin) else None
    own = resolve_own_schedule(options.get("when"), config)
    if own is not None:
        own.check_point(point)
        if point.unit is None and None in own.units():
            raise ConfigError(
                [f"when={own!r}: {point.name} counts nothing. Set the unit, as in every(2, unit='epoch')."]
            )
    # A frequency of 1 equals the default also where schedules are never due, such as at the end of a truncated epoch.
    if config is None or config.frequency in (None, 1) or not applies_frequency(plugin, options, point):
        return own
    frequency = every(config.frequency)
    return frequency if own is None else own & frequency


def applies_frequency(plugin: object, options: Options, point: Point) -> bool:
    """Return whether the setting `frequency` applies to a listener."""
    # Only at the points of the unit of the hook, so that, for example, `after_train` is not affected.
    if not is_configured(plugin) or options.get("frequency") is False:
        return False
    return point.unit in ("iter", "batch") if plugin.unit == "iter" else point.unit == plugin.unit


def resolve_own_schedule(when: Any, config: PluginConfig | None) -> Schedule | None:
    """Return the schedule of a listener without `frequency`: that of the config, or its own; None if it has none.

    Raises:
        ConfigError: If the schedule is invalid.
    """
    if when is None:
        return None
    # `when` replaces existing schedules only: the other listeners of the hook, such as its set-up, always run.
    if config is not None and config.when is not None:
        when = config.when
    if (condition := as_condition(when)) is not None:
        when = condition
    if not isinstance(when, Schedule):
        if config is None:
            raise ConfigError(
                [
                    "when=: functions of the config are supported by hookbus.Hook only. Pass a schedule, or a function "
                    "of the run whose parameter is named `run`."
                ]
            )
        when = when(config)
    if not isinstance(when, Schedule):
        raise ConfigError(
            [f"when=: expected the function to return a schedule, got {when!r}. Return every(None) for never."]
        )
    return when.resolve(config)


def get_predicate(plugin: object, options: Options, point: Point) -> Callable[[int], object] | None:
    """Return `should_trigger` of a hook if it is overridden and applies to a listener."""
    if not is_configured(plugin) or not overrides_should_trigger(plugin):
        return None
    return plugin.should_trigger if point.unit is not None and options.get("frequency") is not False else None


def overrides_should_trigger(plugin: ConfiguredPlugin) -> bool:
    """Return whether a hook overrides `should_trigger`, in its class or as an attribute of the instance."""
    method = inspect.getattr_static(plugin, "should_trigger")
    return method is not vars(configured_base(plugin))["should_trigger"]


def check_listeners(inspection: Inspection) -> None:
    """Resolve every schedule and priority once, so that errors are raised at registration.

    Raises:
        RegistrationError: If a schedule or priority is invalid.
    """
    for implementation in inspection.implementations:
        check_priority(resolve_priority(implementation, None)[0], inspection.plugin, inspection.name)
        try:
            if (point := inspection.points.get(implementation.target)) is not None:
                resolve_schedule(inspection.plugin, implementation.options, point)
        except ConfigError as error:
            raise inspection.fail(f"{implementation.method}: {error}") from None


def check_priority(number: object, plugin: object, name: str) -> None:
    """Raise unless a priority is an integer.

    Raises:
        RegistrationError: If the priority is not an integer.
    """
    # `bool` is a subclass of `int`.
    if not isinstance(number, int) or isinstance(number, bool):
        raise registration_error(
            plugin, name, f"invalid priority, got {number!r}. Pass an integer such as Priority.LOW or 70."
        )


Listeners = Sequence[tuple[Implementation, Point]]


def check_common_keys(inspection: Inspection, priority: int | None) -> None:
    """Check that every common key, and an overridden `should_trigger`, affects at least one listener of a hook.

    Raises:
        RegistrationError: If a key affects none. The message states the reason.
    """
    plugin, points = inspection.plugin, inspection.points
    for number in (plugin.config.priority if is_configured(plugin) else None, priority):
        if number is not None and not inspection.implementations:
            raise inspection.fail(
                f"`priority` orders listeners, but this hook has none, got {number}. Remove `priority`."
            )
    listeners = [(item, points[item.target]) for item in inspection.implementations if item.target in points]
    for problem in _find_problems(listeners, plugin) if is_configured(plugin) else ():
        raise inspection.fail(problem)


def _find_problems(listeners: Listeners, plugin: ConfiguredPlugin) -> Iterator[str]:
    config = plugin.config
    # Exceptions of actions always propagate, which equals "raise".
    if config.on_error not in (None, "raise") and not listeners:
        yield f"`on_error` applies to listeners, but this hook has none, got {config.on_error!r}. Remove `on_error`."
    if config.when is not None and all(item.options.get("when") is None for item, _ in listeners):
        affected = any(applies_frequency(plugin, item.options, point) for item, point in listeners)
        yield (
            "`when` replaces the schedules of listeners, but this hook has no scheduled listener, got "
            f"{config.when!r}. {'Set `frequency` instead' if affected else 'Remove `when`'}."
        )
    if config.frequency not in (None, 1) and (reason := _explain_frequency(listeners, plugin)):
        yield f"`frequency` has no effect, got {config.frequency}: {reason}"
    predicates = (get_predicate(plugin, item.options, point) for item, point in listeners)
    if overrides_should_trigger(plugin) and all(predicate is None for predicate in predicates):
        reason = _explain_required(listeners) or "no listener counts iterations, steps or epochs."
        yield f"should_trigger has no effect: {reason} Remove should_trigger, and test the condition in a listener."


def _explain_frequency(listeners: Listeners, plugin: ConfiguredPlugin) -> str:
    """Return why `frequency` affects no listener, and the fix; "" if it affects one."""
    affected = [item for item, point in listeners if applies_frequency(plugin, item.options, point)]
    if affected:
        is_disabled = all(_is_never_due(item, plugin) for item in affected)
        return f"other settings disable {_join_methods(affected)}. Remove `frequency`." if is_disabled else ""
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
