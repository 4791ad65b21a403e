"""What the packages in `plugins/` offer, and how it is set."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.generating.settings import keys, shown
from docs.generating.tables import described, sentence, table
from hookbus.hook import Hook, HookConfig

__all__ = ["OFFERED", "package_parts", "packages"]

PACKAGES = Path(__file__).parents[2] / "plugins"
OFFERED = ("hookbus.hooks", "hookbus.models", "hookbus.datasets")
"""Groups of entry points whose members have a place on the page of their package."""


def packages() -> str:
    """Every package in `plugins/`: what it offers, and what for."""
    rows = []
    for project in _projects():
        slug, offers = project["name"].removeprefix("hookbus-"), sorted(_offers(project))
        what = project["description"].replace(" for hookbus:", ":")
        rows.append(
            (f"[{slug}](plugins/{slug}.md)", f"{what}<br><small>{', '.join(f'`{each}`' for each in offers)}</small>")
        )
    return table(("package", "what it brings"), rows)


def package_parts() -> Iterator[tuple[str, Callable[[], str]]]:
    """A part for each thing that a package in `plugins/` offers."""
    for project in _projects():
        for name, path in _offers(project).items():
            thing = pkgutil.resolve_name(path)
            if inspect.isclass(thing) and issubclass(thing, Hook):
                yield f"hook/{name}", functools.partial(_hook, name, thing)
            else:
                yield f"factory/{name}", functools.partial(_factory, thing)


def _projects() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text())["project"] for path in sorted(PACKAGES.glob("*/pyproject.toml"))]


def _offers(project: Mapping[str, Any]) -> dict[str, str]:
    """What a package offers to people: entry points, without the points of packages."""
    groups: Mapping[str, dict[str, str]] = project.get("entry-points", {})
    return {name: path for group in OFFERED for name, path in groups.get(group, {}).items()}


def _hook(name: str, cls: type[Hook]) -> str:
    """How a hook is named, how deep it is, what happens when it fails, and its settings."""
    facts = [f"`type: {name}` in a run file, `{cls.__module__.partition('.')[0]}.{cls.__name__}` in Python"]
    facts += [f"priority {int(cls.priority)}", "only watches" if cls.observer else "a failure ends the run"]
    facts += ["on the main process only"] if cls.ranks == "main" else []
    facts += ["needs a work directory"] if cls.needs_work_dir else []
    fields, common = cls.Config.model_fields, HookConfig.model_fields
    shared = [key for key in common if fields[key].description == common[key].description]
    table = keys(cls.Config, shared) if len(shared) < len(fields) else "It has no settings of its own."
    return f"{'; '.join(facts)}.\n\n{table}"


def _factory(function: Callable[..., Any]) -> str:
    """What a model or a data set is made of."""
    meanings = described(function, "Args")
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = "required" if parameter.default is parameter.empty else shown(parameter.default)
        rows.append((f"`{name}`", f"{sentence(meanings[name])}<br><small>{default}</small>"))
    return f"{(inspect.getdoc(function) or '').partition(chr(10))[0]}\n\n{table(('key', 'meaning'), rows)}"
