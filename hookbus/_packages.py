"""Which distribution does a module come from? Asked only when a message needs it."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Collection, Mapping
from types import ModuleType

from hookbus._imports import cause_of
from hookbus.errors import PluginImportError

__all__ = [
    "DATASETS_GROUP",
    "HOOKS_GROUP",
    "MODELS_GROUP",
    "POINTS_GROUP",
    "class_of_entry",
    "distribution_of",
    "entry_point_of",
    "entry_points",
    "module_of",
    "normalized",
    "package_of",
    "parts_of",
    "point_specs",
    "unreadable",
]

HOOKS_GROUP = "hookbus.hooks"
"""The entry-point group in which plugin packages offer their hooks."""
MODELS_GROUP = "hookbus.models"
DATASETS_GROUP = "hookbus.datasets"
"""The entry-point groups in which they offer what run files build by name."""
POINTS_GROUP = "hookbus.points"
"""The entry-point group in which plugin packages offer points of their own, as spec classes."""


def package_of(plugin: object) -> str:
    """The package of a plugin with its version, "hookbus-ema 0.1.0", else the module that defines it."""
    return _package_of(module_of(plugin))


@functools.cache
def _package_of(module: str) -> str:
    distribution = distribution_of(module)
    if distribution is not None:
        return f"{distribution.name} {distribution.version}"
    return "your script" if module == "__main__" else f"module {module}"


@functools.cache
def distribution_of(module: str) -> importlib.metadata.Distribution | None:
    """The installed distribution that a module belongs to, None for a script or a loose module."""
    top = module.partition(".")[0]
    offering = _offering()
    if top in offering:
        return offering[top]
    names = _distributions().get(top)
    return importlib.metadata.distribution(names[0]) if names else None


@functools.cache
def _hook_entries() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(entry_points(HOOKS_GROUP))


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """The entry points of a group. A package whose metadata cannot be read costs no other package: see `unreadable`."""
    try:
        found = list(importlib.metadata.entry_points(group=group))
    except Exception:  # one malformed file, and Python reads none of them
        found = [entry for each in _whole() for entry in each.entry_points if entry.group == group]
    return [entry for entry in found if entry.dist is not None and _name_of(entry.dist)]


def _whole() -> list[importlib.metadata.Distribution]:
    """The distributions whose metadata can be read, each once: the first on the path."""
    first: dict[str, importlib.metadata.Distribution] = {}
    for each in importlib.metadata.distributions():
        if not _flaw_of(each):
            first.setdefault(normalized(_name_of(each)), each)
    return list(first.values())


def unreadable() -> dict[str, str]:
    """The distributions that offer something to hookbus, and whose metadata cannot be read; and why not."""
    there = [each for each in importlib.metadata.distributions() if "[hookbus." in _entry_text(each)]
    flaws = {_name_of(each) or str(each.locate_file("")): _flaw_of(each) for each in there}
    return {name: flaw for name, flaw in flaws.items() if flaw}


def _flaw_of(distribution: importlib.metadata.Distribution) -> str:
    if not _name_of(distribution):
        return "its METADATA gives no name"
    try:
        list(distribution.entry_points)
    except Exception:
        return "its entry_points.txt is malformed"
    return ""


def _name_of(distribution: importlib.metadata.Distribution) -> str:
    try:
        return distribution.name or ""
    except Exception:  # there is no METADATA
        return ""


def _entry_text(distribution: importlib.metadata.Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except Exception:
        return ""


def normalized(name: str) -> str:
    """The name of a distribution as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def _offering() -> dict[str, importlib.metadata.Distribution]:
    """The distributions that offer hooks, by top-level package."""
    found = reversed(_hook_entries())
    return {entry.module.partition(".")[0]: entry.dist for entry in found if entry.dist is not None}


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """The names of all distributions, by top-level package. Reads the records of each, so it is asked for once."""
    return importlib.metadata.packages_distributions()


def entry_point_of(cls: type) -> str | None:
    """The name of the entry point that offers a hook class, None where none does."""
    return _entry_points().get(f"{cls.__module__.partition('.')[0]}:{cls.__qualname__}")


def class_of_entry(kind: str) -> set[str]:
    """All names of the hook that `kind` names: its entry point and its class; empty where nobody offers it."""
    pairs = {(name, key.partition(":")[2]) for key, name in _entry_points().items()}
    return {each for pair in pairs if kind in pair for each in pair}


@functools.cache
def _entry_points() -> dict[str, str]:
    """Entry-point names by top-level package and class."""
    parts = ((entry, *parts_of(entry)) for entry in _hook_entries())
    return {f"{module.partition('.')[0]}:{attribute}": entry.name for entry, module, attribute in parts}


def parts_of(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """The module and the attribute that an entry point names; empty where it is malformed, so that it loads nothing."""
    found = entry.pattern.match(entry.value)
    return (found["module"], found["attr"] or "") if found else ("", "")


def module_of(plugin: object) -> str:
    """The name of the module that defines a plugin."""
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    return str(getattr(plugin, "__module__", None) or type(plugin).__module__)


def point_specs(names: Collection[str], module: str = "") -> list[type]:
    """Import spec classes that declare points of one's own: those of these names, and those of `module`'s package.

    Raises:
        PluginImportError: one cannot be imported.
    """
    top = module.partition(".")[0]
    entries = entry_points(POINTS_GROUP)
    wanted = [e for e in entries if e.name in names or (top and parts_of(e)[0].partition(".")[0] == top)]
    return [_loaded(entry) for entry in sorted(wanted, key=lambda e: (e.name, e.value))]


def _loaded(entry: importlib.metadata.EntryPoint) -> type:
    try:
        return entry.load()  # type: ignore[no-any-return]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        assert entry.dist is not None
        raise PluginImportError(
            f"{entry.dist.name} {entry.dist.version} offers the point {entry.name!r}, but {entry.value} cannot be "
            f"imported: {cause_of(error)}. Repair or remove that package."
        ) from error
