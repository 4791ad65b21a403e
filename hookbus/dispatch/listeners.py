"""From what pluggy keeps of an implementation to a listener: its number, its schedule, its wishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookbus.dispatch.checks import Implementation, refusal
from hookbus.dispatch.compiling import Listener
from hookbus.errors import ConfigError
from hookbus.hook import Hook, HookConfig, Priority
from hookbus.lifecycle import Point
from hookbus.markers import Options
from hookbus.when import Schedule, every

__all__ = ["check_listeners", "check_priority", "listener_of", "priority_of", "schedule_of"]


def listener_of(found: Implementation, point: Point, given: int | None) -> Listener:
    """One implementation as a listener.

    Args:
        found: what the plugin implements.
        point: where it listens.
        given: the priority that was given when the hook was registered.
    """
    number, source = priority_of(found, given)
    return Listener(
        hook=found.hook,
        plugin=found.plugin,
        point=point.name,
        call=found.call,
        wants=found.wants,
        rest=found.rest,
        priority=number,
        source=source,
        schedule=schedule_of(found.plugin, found.options, point),
        asks=_asks(found.plugin, point),
        before=found.options.get("before", ()),
        after=found.options.get("after", ()),
    )


def priority_of(found: Implementation, given: int | None) -> tuple[int, str]:
    """A number and where it comes from: what the user said wins over what the hook's author said."""
    plugin, own = found.plugin, found.options.get("priority")
    if given is not None:
        return given, "register(priority=)"
    if isinstance(plugin, Hook) and plugin.config.priority is not None:
        return plugin.config.priority, "config"
    if own is not None:
        return own, "@hookimpl"
    if isinstance(plugin, Hook):
        return plugin.priority, f"class {type(plugin).__name__}"
    return int(Priority.NORMAL), "default"


def schedule_of(plugin: object, options: Options, point: Point) -> Schedule | None:
    """When a listener is due: its own schedule, and the config's `when` and `frequency`.

    Raises:
        ConfigError: a schedule does not hold.
    """
    config = plugin.config if isinstance(plugin, Hook) else None
    own = _own_schedule(options.get("when"), config)
    if not isinstance(plugin, Hook) or plugin.config.frequency is None:
        return own
    gated = _per_iteration(point) if plugin.unit == "iter" else point.unit == plugin.unit
    if not gated:
        return own
    frequency = every(plugin.config.frequency)
    return frequency if own is None else own & frequency


def _own_schedule(when: Any, config: HookConfig | None) -> Schedule | None:
    if when is None:
        return None
    if config is not None and config.when is not None:
        when = config.when
    if not isinstance(when, Schedule):
        if config is None:
            raise ConfigError(["when= is a function of a config, and only a hookbus.Hook has one: give a schedule."])
        when = when(config)
    if not isinstance(when, Schedule):
        raise ConfigError([f"when= is a function that returned {when!r}: return a schedule, every(None) for never."])
    return when.resolve(config)


def _asks(plugin: object, point: Point) -> Callable[[int], object] | None:
    """A hook's own `should_trigger`, where it decides: at per-iteration points."""
    if not isinstance(plugin, Hook) or type(plugin).should_trigger is Hook.should_trigger:
        return None
    return plugin.should_trigger if _per_iteration(point) else None


def _per_iteration(point: Point) -> bool:
    return point.unit in ("iter", "batch")


def check_listeners(found: Sequence[Implementation], plugin: object, name: str, points: Mapping[str, Point]) -> None:
    """Resolve every schedule and priority once, so that a mistake is seen at registration.

    Raises:
        RegistrationError: one of them does not hold, or the config has `when` and there is none to replace.
    """
    for each in found:
        check_priority(priority_of(each, None)[0], plugin, name)
        try:
            if each.target in points:
                schedule_of(plugin, each.options, points[each.target])
        except ConfigError as error:
            raise refusal(plugin, name, f"{each.method}: {error}") from None
    scheduled = any(each.options.get("when") is not None for each in found)
    if isinstance(plugin, Hook) and plugin.config.when is not None and not scheduled:
        why = "when= replaces the schedule of its scheduled listeners, and it has none."
        raise refusal(plugin, name, f"{why} To gate its per-iteration points, say frequency.")


def check_priority(number: object, plugin: object, name: str) -> None:
    """See that a priority is a number.

    Raises:
        RegistrationError: it is not.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise refusal(plugin, name, f"the priority {number!r} is not a whole number. Write Priority.LOW, or 70.")
