"""Lookup of distributions, entry points and modules with `importlib.metadata`.

Lookups are lazy: reading the metadata of all installed packages takes much longer than importing hookbus.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import hookbus
from hookbus._utils.imports import describe_error
from hookbus.errors import PluginImportError, PluginVersionError

HOOKS_GROUP = "hookbus.hooks"
"""Entry-point group in which plugin packages publish their hooks."""
MODELS_GROUP = "hookbus.models"
DATASETS_GROUP = "hookbus.datasets"
"""Entry-point groups of the models and datasets that run files refer to by name."""
BRIDGES_GROUP = "hookbus.bridges"
"""Entry-point group in which packages publish the capabilities of the trainers that they connect."""
POINTS_GROUP = "hookbus.points"
"""Entry-point group in which plugin packages publish additional points, as spec classes."""


_packages_distributions = functools.cache(importlib.metadata.packages_distributions)
"""Names of all distributions by top-level package. Cached, because it reads every file record."""

P = ParamSpec("P")
T = TypeVar("T")

_results: ContextVar[dict[Any, Any] | None] = ContextVar("_results", default=None)


@contextmanager
def cached_lookups() -> Iterator[None]:
    """Context manager in which decorated functions read the installed packages at most once."""
    token = _results.set({} if _results.get() is None else _results.get())
    try:
        yield
    finally:
        _results.reset(token)


def cache_within_lookups(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function inside `cached_lookups`. Callers must not modify the results."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        results = _results.get()
        if results is None:
            return function(*args, **kwargs)
        key = (function, args, tuple(kwargs.items()))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]  # type: ignore[no-any-return]

    return call


def package_label(plugin: object) -> str:
    """Return the package of a plugin with its version, such as "hookbus-ema 0.1.0", else the module that defines it."""
    return _format_package(get_module_name(plugin))


@functools.cache
def _format_package(module: str) -> str:
    distribution = get_distribution(module)
    if distribution is not None:
        return f"{distribution.name} {distribution.version}"
    return "your script" if module == "__main__" else f"module {module}"


@functools.cache
def get_distribution(module: str) -> importlib.metadata.Distribution | None:
    """Return the installed distribution that a module belongs to, None for a script or a loose module."""
    top = module.partition(".")[0]
    published = _distributions_by_module()
    # Entry points are cheaper to read than the file records of every distribution.
    if top in published:
        return published[top]
    names = _packages_distributions().get(top)
    return importlib.metadata.distribution(names[0]) if names else None


@functools.cache
def _hook_entries() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(entry_points(HOOKS_GROUP))


@cache_within_lookups
def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """Return the entry points of a group. Packages with unreadable metadata are skipped, see `broken_distributions`."""
    try:
        entries = list(importlib.metadata.entry_points(group=group))
    except Exception:  # a single malformed file makes importlib.metadata (Python 3.11) raise for all packages
        entries = [
            entry
            for distribution in _readable_distributions()
            for entry in distribution.entry_points
            if entry.group == group
        ]
    return [entry for entry in entries if entry.dist is not None and _get_name(entry.dist)]


def _readable_distributions() -> list[importlib.metadata.Distribution]:
    """Return the distributions with readable metadata, one per name."""
    first: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if not _metadata_error(distribution):
            # The first distribution on `sys.path` shadows the others, as in an import.
            first.setdefault(normalize_name(_get_name(distribution)), distribution)
    return list(first.values())


@cache_within_lookups
def broken_distributions() -> dict[str, str]:
    """Return the distributions with hookbus entry points whose metadata cannot be read, with the reason of each."""
    flaws = {
        _get_name(distribution) or str(distribution.locate_file("")): _metadata_error(distribution)
        for distribution in importlib.metadata.distributions()
        if "[hookbus." in _read(functools.partial(distribution.read_text, "entry_points.txt"))
    }
    return {name: flaw for name, flaw in flaws.items() if flaw}


def _metadata_error(distribution: importlib.metadata.Distribution) -> str:
    if not _get_name(distribution):
        return "its METADATA file contains no name"
    try:
        list(distribution.entry_points)
    except Exception:
        return "its entry_points.txt is malformed"
    return ""


def _get_name(distribution: importlib.metadata.Distribution) -> str:
    return _read(lambda: distribution.name)


def _read(read: Callable[[], str | None]) -> str:
    """Return a text of the metadata, "" if it is missing or cannot be read."""
    try:
        return read() or ""
    except Exception:  # such as the name if there is no METADATA
        return ""


def normalize_name(name: str) -> str:
    """Return the normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def _distributions_by_module() -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions that publish hooks by top-level package."""
    entries = reversed(_hook_entries())
    # Reversed, so that the first entry on `sys.path` is stored last and wins.
    return {entry.module.partition(".")[0]: entry.dist for entry in entries if entry.dist is not None}


def get_entry_point_name(cls: type) -> str | None:
    """Return the name of the entry point that publishes a hook class, None if there is none."""
    return _entry_point_names().get(f"{cls.__module__.partition('.')[0]}:{cls.__qualname__}")


def hook_names_of_entry(kind: str) -> set[str]:
    """Return all names of a hook: its entry points and its class. Empty if no package publishes it.

    Args:
        kind: The name of an entry point or of a hook class.
    """
    pairs = {(name, key.partition(":")[2]) for key, name in _entry_point_names().items()}
    return {name for pair in pairs if kind in pair for name in pair}


@functools.cache
def _entry_point_names() -> dict[str, str]:
    """Return entry-point names by top-level package and class."""
    parts = ((entry, *split_entry_point(entry)) for entry in _hook_entries())
    return {f"{module.partition('.')[0]}:{attribute}": entry.name for entry, module, attribute in parts}


def split_entry_point(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """Return the module and the attribute that an entry point refers to, or two empty strings if it is malformed."""
    match = entry.pattern.match(entry.value)
    return (match["module"], match["attr"] or "") if match else ("", "")


def get_module_name(plugin: object) -> str:
    """Return the name of the module that defines a plugin."""
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    return str(getattr(plugin, "__module__", None) or type(plugin).__module__)


def check_requirement(distribution: importlib.metadata.Distribution) -> None:
    """Raise if a distribution does not accept the running version of hookbus.

    Raises:
        PluginVersionError: If the distribution requires another version.
    """
    # Imported here to keep `import hookbus` and `hookbus hooks` fast.
    from packaging.requirements import InvalidRequirement, Requirement

    package = normalize_name(distribution.name)
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if normalize_name(requirement.name) != "hookbus" or (requirement.marker and not requirement.marker.evaluate()):
            continue
        if not requirement.specifier.contains(hookbus.__version__, prereleases=True):
            raise PluginVersionError(
                f"{package} {distribution.version} requires hookbus{requirement.specifier}, but hookbus "
                f"{hookbus.__version__} is installed. Run: pip install --upgrade hookbus {package}"
            )


def load_point_specs(names: Collection[str], module: str = "") -> list[type]:
    """Import the spec classes of additional points.

    Args:
        names: Names of points to import.
        module: A module; the points that its package publishes are imported as well. Default: none.

    Returns:
        The spec classes, sorted by the name of their entry point.

    Raises:
        PluginVersionError: If a package requires another version of hookbus.
        PluginImportError: If a spec class cannot be imported.
    """
    top = module.partition(".")[0]
    entries = entry_points(POINTS_GROUP)
    wanted = [e for e in entries if e.name in names or (top and split_entry_point(e)[0].partition(".")[0] == top)]
    return [
        load_entry_point(e, f"publishes the point {e.name!r}", "Repair or remove the package.")
        for e in sorted(wanted, key=lambda e: (e.name, e.value))
    ]


def load_entry_point(entry: importlib.metadata.EntryPoint, claim: str, remedy: str) -> Any:
    """Import the object that an entry point refers to, after checking the required hookbus version.

    Args:
        entry: The entry point.
        claim: What its package does, for the message.
        remedy: What to do, for the message.

    Raises:
        PluginVersionError: If the package requires another version of hookbus.
        PluginImportError: If the import fails. The message contains the cause.
    """
    assert entry.dist is not None
    check_requirement(entry.dist)
    try:
        return entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise SystemExit, or a BaseException such as pytest's Skipped
        raise PluginImportError(
            f"{normalize_name(entry.dist.name)} {entry.dist.version} {claim}, but {entry.value} cannot be imported: "
            f"{describe_error(error)}. {remedy}"
        ) from error
