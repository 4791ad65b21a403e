"""From what pluggy keeps of an implementation to a listener: its number, its schedule, its wishes."""

from __future__ import annotations

from typing import Any

from hookbus._checks import Implementation
from hookbus._dispatch import Listener
from hookbus._packages import package_of
from hookbus.errors import ConfigError, RegistrationError
from hookbus.hook import Hook
from hookbus.lifecycle import Point
from hookbus.markers import Options
from hookbus.when import Asked, Schedule, every

__all__ = ["check_schedules", "listener_of", "priority_of", "schedule_of"]


def listener_of(impl: Any, point: Point, given: int | None) -> Listener:
    """One implementation, as pluggy keeps it, as a listener.

    Args:
        impl: pluggy's HookImpl; its options hold our own.
        point: where it listens.
        given: the priority that was given when the hook was registered.
    """
    found: Implementation = impl.opts["found"]
    number, source = priority_of(impl.plugin, found.options, given)
    return Listener(
        hook=impl.plugin_name,
        plugin=impl.plugin,
        point=point.name,
        call=impl.function,
        wants=found.wants,
        rest=found.rest,
        priority=number,
        source=source,
        schedule=schedule_of(impl.plugin, found.options, point),
        before=found.options.get("before", ()),
        after=found.options.get("after", ()),
    )


def priority_of(plugin: object, options: Options, given: int | None) -> tuple[int, str]:
    """A number and where it comes from: what the user said wins over what the hook's author said."""
    if given is not None:
        return given, "register(priority=)"
    if isinstance(plugin, Hook) and plugin.config.priority is not None:
        return plugin.config.priority, "config"
    if options.get("priority") is not None:
        return int(options["priority"]), "@hookimpl"
    if isinstance(plugin, Hook):
        return int(plugin.priority), f"class {type(plugin).__name__}"
    return 50, "default"


def schedule_of(plugin: object, options: Options, point: Point) -> Schedule | None:
    """When a listener is due: its own schedule, the config's `when` and `frequency`, its `should_trigger`."""
    own = options.get("when")
    if not isinstance(plugin, Hook):
        return own if own is None or isinstance(own, Schedule) else own(None)
    config = plugin.config
    if own is not None:
        own = config.when or (own if isinstance(own, Schedule) else own(config)).resolve(config)
    parts = [own] if own is not None else []
    per_iteration = point.unit in ("iter", "batch")
    gated = per_iteration if plugin.unit == "iter" else point.unit == plugin.unit
    if config.frequency is not None and gated:
        parts.append(every(config.frequency))
    if per_iteration and type(plugin).should_trigger is not Hook.should_trigger:
        parts.append(Asked(plugin.should_trigger))
    if not parts:
        return None
    schedule = parts[0]
    for part in parts[1:]:
        schedule = schedule & part
    return schedule


def check_schedules(plugin: object, name: str, found: list[Implementation], points: Any) -> None:
    """Resolve every schedule once, so that a mistake is seen at registration.

    Raises:
        RegistrationError: a schedule does not hold, or the config has `when` and there is none to replace.
    """
    try:
        for each in found:
            if each.target in points:
                schedule_of(plugin, each.options, points[each.target])
    except ConfigError as error:
        raise RegistrationError(f"hook {name!r} ({package_of(plugin)}) was not registered: {error}") from None
    scheduled = any(each.options.get("when") is not None for each in found)
    if isinstance(plugin, Hook) and plugin.config.when is not None and not scheduled:
        raise RegistrationError(
            f"hook {name!r} ({package_of(plugin)}) was not registered: when= replaces the schedule of its scheduled "
            "listeners, and it has none. To gate its per-iteration points, say frequency."
        )
