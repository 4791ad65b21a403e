"""Conversion of an implementation to a listener: its priority, schedule and ordering constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookbus._events.checks import Implementation, PluginConfig, configured_base, is_configured, registration_error
from hookbus._events.markers import Options
from hookbus._events.ordering import DEFAULT_PRIORITY, Listener
from hookbus._events.points import Point
from hookbus._events.schedules import Schedule, every
from hookbus.errors import ConfigError

__all__ = ["build_listener", "check_listeners", "check_priority", "resolve_priority", "resolve_schedule"]


def build_listener(implementation: Implementation, point: Point, override: int | None) -> Listener:
    """Build the listener of an implementation.

    Args:
        implementation: Implementation of the point.
        point: The point.
        override: Priority passed at registration, None if there is none.
    """
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
        predicate=_get_predicate(implementation.plugin, point),
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
    own = _own_schedule(options.get("when"), config)
    if not is_configured(plugin) or plugin.config.frequency is None:
        return own
    # `frequency` applies to the points of the unit of the hook only, so that, for example, `after_train` is not
    # affected.
    applies = _is_per_iteration(point) if plugin.unit == "iter" else point.unit == plugin.unit
    if not applies:
        return own
    frequency = every(plugin.config.frequency)
    return frequency if own is None else own & frequency


def _own_schedule(when: Any, config: PluginConfig | None) -> Schedule | None:
    if when is None:
        return None
    # `when` replaces existing schedules only: the other listeners of the hook, such as its set-up, always run.
    if config is not None and config.when is not None:
        when = config.when
    if not isinstance(when, Schedule):
        if config is None:
            raise ConfigError(["when=: functions of the config are supported by hookbus.Hook only. Pass a schedule."])
        when = when(config)
    if not isinstance(when, Schedule):
        raise ConfigError(
            [f"when=: expected the function to return a schedule, got {when!r}. Return every(None) for never."]
        )
    return when.resolve(config)


def _get_predicate(plugin: object, point: Point) -> Callable[[int], object] | None:
    """Return `should_trigger` of a hook if it is overridden and applies to the point."""
    if not is_configured(plugin) or type(plugin).should_trigger is vars(configured_base(plugin))["should_trigger"]:
        return None
    return plugin.should_trigger if _is_per_iteration(point) else None


def _is_per_iteration(point: Point) -> bool:
    return point.unit in ("iter", "batch")


def check_listeners(
    implementations: Sequence[Implementation], plugin: object, name: str, points: Mapping[str, Point]
) -> None:
    """Resolve every schedule and priority once, so that errors are raised at registration.

    Raises:
        RegistrationError: If a schedule or priority is invalid, or the config sets `when` and no listener is scheduled.
    """
    for implementation in implementations:
        check_priority(resolve_priority(implementation, None)[0], plugin, name)
        try:
            if implementation.target in points:
                resolve_schedule(plugin, implementation.options, points[implementation.target])
        except ConfigError as error:
            raise registration_error(plugin, name, f"{implementation.method}: {error}") from None
    scheduled = any(implementation.options.get("when") is not None for implementation in implementations)
    if is_configured(plugin) and plugin.config.when is not None and not scheduled:
        problem = "`when` replaces the schedules of listeners, but this hook has no scheduled listener."
        raise registration_error(plugin, name, f"{problem} Set `frequency` for its per-iteration points.")


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
