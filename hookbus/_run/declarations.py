"""Validation of the attributes and properties by which hooks describe themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from hookbus._events.points import HookUnit
from hookbus._run.host_needs import format_hook
from hookbus.errors import ConfigError, suggest_names
from hookbus.hook import Direction, Hook, Ranks
from hookbus.needs import Needs

_CHOICES = {"unit": get_args(HookUnit), "ranks": get_args(Ranks)}
_TYPES = {
    "needs": (Needs, "be an instance of hookbus.Needs"),
    "best_metrics": (Mapping, "map names of metrics to directions"),
    "output_paths": (Mapping, "map names of settings to paths"),
}


def find_declaration_errors(hooks: Mapping[str, Hook]) -> Iterator[ConfigError]:
    """Yield the errors of hooks with an invalid attribute or property, except for the metrics that they read."""
    for name, hook in hooks.items():
        for problem in (*_find_invalid_choices(hook), *_find_invalid_types(hook), *_find_invalid_directions(hook)):
            yield ConfigError([f"{format_hook(name, hook)}: {problem}"])


def find_name_errors(hooks: Mapping[str, Hook]) -> Iterator[ConfigError]:
    """Yield the errors of hooks that declare one name of a metric instead of a list."""
    for name, hook in hooks.items():
        for attribute in ("required_metrics", "provided_metrics"):
            # A string would be a collection of letters.
            if isinstance(value := getattr(hook, attribute), str):
                yield ConfigError(
                    [
                        f"{format_hook(name, hook)}: {attribute}: should be a list of names, got {value!r}. Set "
                        f"[{value!r}]."
                    ]
                )


def _find_invalid_choices(hook: Hook) -> Iterator[str]:
    for attribute, allowed in _CHOICES.items():
        if (value := getattr(hook, attribute)) not in allowed:
            yield f"{attribute}: unknown value, got {value!r}.{suggest_names(str(value), allowed)}"


def _find_invalid_types(hook: Hook) -> Iterator[str]:
    for attribute, (kind, expected) in _TYPES.items():
        if not isinstance(value := getattr(hook, attribute), kind):
            yield f"{attribute}: should {expected}, got {value!r}."


def _find_invalid_directions(hook: Hook) -> Iterator[str]:
    best = hook.best_metrics
    for metric, direction in best.items() if isinstance(best, Mapping) else ():
        if direction is not None and direction not in get_args(Direction):
            yield (
                f"best_metrics: unknown direction of {metric!r}, got {direction!r}. Use 'greater', 'less', or None to "
                "infer it."
            )
