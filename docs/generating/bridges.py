"""Packages of other trainers: what the trainers offer, and which hooks of the project work in them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from docs.generating.common_keys import REQUIRED_SETTINGS
from docs.generating.packages import hook_classes, read_projects
from docs.generating.tables import capitalize, table
from hookbus._run.host import Capabilities, Checkpoints
from hookbus._run.host_needs import PROVIDED, HostReport, compare_hooks
from hookbus._utils.packages import BRIDGES_GROUP
from hookbus.hook import Hook
from hookbus.needs import REQUESTS

__all__ = ["bridge_packages", "capabilities", "compare", "differences", "hooks_in_trainers", "refusals"]

SIGNS = {"works": "✓", "works approximately": "≈", "cannot work": "✗"}


def bridge_packages() -> str:
    """Return the table of the packages that connect other trainers."""
    rows = (
        (f"`{project['name']}`", _format_names(project["entry-points"][BRIDGES_GROUP]), _format_versions(project))
        for project in _iter_bridges()
    )
    return table(("package", "connects", "tested versions"), rows)


def capabilities() -> str:
    """Return the table of what each trainer offers."""
    hosts = _capabilities()
    rows = [(f"a requested {text}", [_find_time(host, name) for host in hosts]) for name, text in REQUESTS.items()]
    rows += [
        (capitalize(text), [_format_flag(getattr(host, name)) for host in hosts]) for name, text in PROVIDED.items()
    ]
    rows += [
        ("gradients of the model", [_format_names(host.gradients) for host in hosts]),
        ("accumulation that hooks change", [_format_flag(host.accumulation) for host in hosts]),
        ("actions that hooks wrap", [_format_names(host.actions) for host in hosts]),
        ("owner of the checkpoints", [_format_names(host.checkpoints) for host in hosts]),
        ("a step is", [host.step for host in hosts]),
    ]
    return table(("", *(host.host for host in hosts)), ((text, *cells) for text, cells in rows))


def differences() -> str:
    """Return the table of the points that a trainer emits approximately or not at all."""
    rows = []
    for host in _capabilities():
        rows += [(host.host, f"`{point}`", "approximate", capitalize(text)) for point, text in host.approximate.items()]
        rows += [(host.host, f"`{point}`", "missing", capitalize(text)) for point, text in host.missing.items()]
    return table(("trainer", "point", "", "difference"), rows)


def hooks_in_trainers() -> str:
    """Return the table of the hooks of the project, and whether each works in each trainer."""
    hosts = _capabilities()
    rows = ((f"`{name}`", *(_format_report(hook, host) for host in hosts)) for name, hook in _hooks().items())
    return table(("hook", *(host.host for host in hosts)), rows)


def refusals() -> str:
    """Return the table of the hooks that a trainer cannot run, with the reason of each."""
    trainers: dict[tuple[str, str], list[str]] = {}
    for name, hook in _hooks().items():
        for host in _capabilities():
            for problem in compare(hook, host)[1].problems:
                trainers.setdefault((name, problem.replace(host.host, "the trainer")), []).append(host.host)
    rows = ((f"`{name}`", ", ".join(hosts), capitalize(problem)) for (name, problem), hosts in trainers.items())
    return table(("hook", "trainer", "reason"), rows)


def compare(hook: Hook, host: Capabilities) -> tuple[Checkpoints, HostReport]:
    """Return what a hook can do in a trainer, with the first owner of the checkpoints that it works with.

    Args:
        hook: The hook.
        host: What the trainer offers.
    """
    reports = [(mode, compare_hooks({"": hook}, host, mode)[""]) for mode in host.checkpoints]
    return next((pair for pair in reports if not pair[1].problems), reports[0])


def _find_time(host: Capabilities, request: str) -> str:
    return next((when for name, when in host.requests.items() if name == request), "never")


def _format_report(hook: Hook, host: Capabilities) -> str:
    mode, report = compare(hook, host)
    return SIGNS[report.status] + (f" with `checkpoints='{mode}'`" if mode != host.checkpoints[0] else "")


@cache
def _hooks() -> Mapping[str, Hook]:
    classes = sorted(hook_classes().items())
    return {name: cls(dict(REQUIRED_SETTINGS.get(name, {}))) for name, cls in classes}


@cache
def _capabilities() -> tuple[Capabilities, ...]:
    """Return what each trainer offers, once for trainers with several names."""
    paths = chain.from_iterable(project["entry-points"][BRIDGES_GROUP].values() for project in _iter_bridges())
    return tuple(pkgutil.resolve_name(path) for path in dict.fromkeys(paths))


def _iter_bridges() -> Iterator[dict[str, Any]]:
    return (project for project in read_projects() if BRIDGES_GROUP in project.get("entry-points", {}))


def _format_versions(project: Mapping[str, Any]) -> str:
    """Return the requirements of a package for its trainers."""
    texts = chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    return _format_names(text for text in texts if not text.startswith("hookbus"))


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no"


def _format_flag(value: bool) -> str:
    return "yes" if value else "no"
