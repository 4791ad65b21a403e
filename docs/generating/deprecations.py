"""Points, arguments and settings of the core and of the plugin packages that a later version removes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel

from docs.generating.packages import hook_classes
from docs.generating.settings import SECTIONS
from docs.generating.tables import table
from hookbus._config.models import RunConfig
from hookbus._events.points import Point
from hookbus._utils.deprecations import describe_notice
from hookbus.hook import HookConfig
from hookbus.lifecycle import POINTS

__all__ = ["deprecations", "iter_deprecations", "list_own_deprecations"]


def deprecations() -> str:
    """Return the table of what is deprecated, or that there is nothing."""
    rows = list_own_deprecations()
    return table(("deprecated", "removal and replacement"), rows) if rows else "Nothing."


def list_own_deprecations() -> list[tuple[str, str]]:
    """Return what is deprecated in the core and in the plugin packages of this project."""
    models: dict[str, type[BaseModel]] = {"": RunConfig, **SECTIONS, "every hook": HookConfig}
    models |= {name: cls.Config for name, cls in hook_classes().items()}
    return list(iter_deprecations(POINTS.values(), models))


def iter_deprecations(points: Iterable[Point], models: Mapping[str, type[BaseModel]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each deprecated point, argument and setting, and what a warning states about it.

    Args:
        points: The points.
        models: Models of settings by the name of their section or hook.
    """
    for point in points:
        for deprecation in point.deprecations:
            argument = f"({deprecation.argument})" if deprecation.argument else ""
            yield f"`{point.name}{argument}`", deprecation.text
    for owner, model in models.items():
        for name, field in model.model_fields.items():
            if field.deprecated:
                yield f"`{'.'.join(filter(None, (owner, name)))}`", describe_notice(field.deprecated)
