"""Hooks, models and datasets of the packages in `plugins/`, with their settings."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from docs.generating.settings import format_default, keys
from docs.generating.tables import capitalize, parse_section, table
from hookbus.hook import Hook, HookConfig

__all__ = ["OFFERED", "extras", "hook_classes", "package_parts", "packages", "read_projects"]

CORE = Path(__file__).parents[2]
PACKAGES = CORE / "plugins"
OFFERED = ("hookbus.hooks", "hookbus.models", "hookbus.datasets")
"""Entry-point groups whose members are documented on the page of their package."""


def packages() -> str:
    """Return the table of the packages in `plugins/` with hooks, models or datasets."""
    rows = []
    for project in filter(_get_entry_points, read_projects()):
        slug, names = project["name"].removeprefix("hookbus-"), sorted(_get_entry_points(project))
        description = project["description"].replace(" for hookbus:", ":")
        rows.append(
            (
                f"[{slug}](plugins/{slug}.md)",
                f"{description}<br><small>{', '.join(f'`{name}`' for name in names)}</small>",
            )
        )
    return table(("package", "content"), rows)


def extras() -> str:
    """Return the table of the extras of the core."""
    project = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]
    rows = [
        (f"`hookbus[{extra}]`", ", ".join(map(_format_requirement, requirements)))
        for extra, requirements in project["optional-dependencies"].items()
    ]
    return table(("extra", "installs"), rows)


def package_parts() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield a part for each hook, model and dataset in `plugins/`."""
    for project in read_projects():
        for name, path in _get_entry_points(project).items():
            target = pkgutil.resolve_name(path)
            if inspect.isclass(target) and issubclass(target, Hook):
                yield f"hook/{name}", functools.partial(_hook, name, target)
            else:
                yield f"factory/{name}", functools.partial(_factory, target)


def hook_classes() -> dict[str, type[Hook]]:
    """Return the hook classes in `plugins/` by the name of their entry point."""
    paths = {name: path for project in read_projects() for name, path in _get_entry_points(project).items()}
    targets = {name: pkgutil.resolve_name(path) for name, path in paths.items()}
    return {name: cls for name, cls in targets.items() if inspect.isclass(cls) and issubclass(cls, Hook)}


def read_projects() -> list[dict[str, Any]]:
    """Return the metadata of each package in `plugins/`."""
    return [tomllib.loads(path.read_text())["project"] for path in sorted(PACKAGES.glob("*/pyproject.toml"))]


def _format_requirement(text: str) -> str:
    """Return a requirement without its versions."""
    requirement = Requirement(text)
    suffix = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"`{requirement.name}{suffix}`"


def _get_entry_points(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry points of the documented groups."""
    groups: Mapping[str, dict[str, str]] = project.get("entry-points", {})
    return {name: path for group in OFFERED for name, path in groups.get(group, {}).items()}


def _hook(name: str, cls: type[Hook]) -> str:
    """Return type, class, priority, failure mode and settings of a hook."""
    facts = [f"`type: {name}` in a run file, `{cls.__module__.partition('.')[0]}.{cls.__name__}` in Python"]
    facts += [
        f"priority {int(cls.priority)}",
        "observer: a failure is a warning" if cls.observer else "a failure ends the run",
    ]
    facts += ["runs on rank 0 only"] if cls.ranks == "main" else []
    facts += ["requires a work directory"] if cls.requires_work_dir else []
    fields, common = cls.Config.model_fields, HookConfig.model_fields
    shared = [key for key in common if fields[key].description == common[key].description]
    table = keys(cls.Config, shared) if len(shared) < len(fields) else "The hook has only the common settings."
    return f"{'; '.join(facts)}.\n\n{table}"


def _factory(function: Callable[..., Any]) -> str:
    """Return summary and parameters of a model or dataset."""
    meanings = parse_section(function, "Args")
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = "required" if parameter.default is parameter.empty else format_default(parameter.default)
        rows.append((f"`{name}`", f"{capitalize(meanings[name])}<br><small>{default}</small>"))
    return f"{(inspect.getdoc(function) or '').partition(chr(10))[0]}\n\n{table(('key', 'meaning'), rows)}"
