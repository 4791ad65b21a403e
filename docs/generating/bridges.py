"""Packages of other trainers: what the trainers offer, and which hooks of the project work in them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from docs.generating.common_keys import REQUIRED_SETTINGS
from docs.generating.packages import hook_classes, read_projects
from docs.generating.tables import capitalize, table
from hookbus._run.host import REQUESTS, Capabilities, Checkpoints
from hookbus._run.host_needs import NEEDS, find_differences, find_host_errors
from hookbus._utils.packages import BRIDGES_GROUP
from hookbus.hook import Hook

__all__ = ["bridge_packages", "capabilities", "differences", "evaluate", "hooks_in_trainers", "refusals"]

WORKS, APPROXIMATE, REFUSED = "✓", "≈", "✗"
MODE_NOTE = '✓ with `checkpoints="hookbus"`'


def bridge_packages() -> str:
    """Return the table of the packages that connect other trainers."""
    rows = [
        (f"`{project['name']}`", ", ".join(f"`{name}`" for name in trainers), _format_versions(project))
        for project, trainers in _iter_bridges()
    ]
    return table(("package", "connects", "tested versions"), rows)


def capabilities() -> str:
    """Return the table of what each trainer offers."""
    hosts = list(_capabilities())
    rows = [
        (f"a requested {name}", *(host.requests.get(request, "never") for host in hosts))
        for request, name in REQUESTS.items()
    ]
    rows += [("gradients of the model", *(", ".join(f"`{p}`" for p in host.gradients) or "no" for host in hosts))]
    rows += [
        (description, *(_format_flag(getattr(host, name)) for host in hosts)) for name, description in NEEDS.items()
    ]
    rows += [("owner of the checkpoints", *(", ".join(f"`{mode}`" for mode in host.checkpoints) for host in hosts))]
    rows += [("a step is", *(host.step for host in hosts))]
    return table(("", *(host.host for host in hosts)), rows)


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
    rows = [(f"`{name}`", *(evaluate(hook, host)[0] for host in hosts)) for name, hook in _hooks().items()]
    return table(("hook", *(host.host for host in hosts)), rows)


def refusals() -> str:
    """Return the table of the hooks that a trainer cannot run, with the reason of each."""
    rows = [
        (f"`{name}`", host.host, reason)
        for name, hook in _hooks().items()
        for host in _capabilities()
        if (reason := evaluate(hook, host)[1])
    ]
    return table(("hook", "trainer", "reason"), rows)


def evaluate(hook: Hook, host: Capabilities) -> tuple[str, str]:
    """Return whether a hook works in a trainer, and why not.

    Args:
        hook: The hook.
        host: What the trainer offers.
    """
    errors = {mode: _find_error(hook, host, mode) for mode in host.checkpoints}
    if all(errors.values()):
        return REFUSED, next(iter(errors.values()))
    if errors.get("host"):
        return MODE_NOTE, ""
    return (APPROXIMATE if any(find_differences(hook, host)) else WORKS), ""


def _find_error(hook: Hook, host: Capabilities, mode: Checkpoints) -> str:
    errors = find_host_errors({"": hook}, host, mode)
    return " ".join(problem.partition(": ")[2] for error in errors for problem in error.problems)


@cache
def _hooks() -> Mapping[str, Hook]:
    classes = sorted(hook_classes().items())
    return {name: cls(dict(REQUIRED_SETTINGS.get(name, {}))) for name, cls in classes}


@cache
def _capabilities() -> tuple[Capabilities, ...]:
    """Return what each trainer offers, once for trainers with several names."""
    offers: dict[str, Capabilities] = {}
    for project, _ in _iter_bridges():
        for path in project["entry-points"][BRIDGES_GROUP].values():
            host: Capabilities = pkgutil.resolve_name(path)
            offers.setdefault(host.host, host)
    return tuple(offers.values())


def _iter_bridges() -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the packages of trainers and the names of their trainers."""
    for project in read_projects():
        if trainers := project.get("entry-points", {}).get(BRIDGES_GROUP):
            yield project, list(trainers)


def _format_versions(project: Mapping[str, Any]) -> str:
    texts = chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    return ", ".join(f"`{text}`" for text in texts if not text.startswith("hookbus"))


def _format_flag(value: bool) -> str:
    return "yes" if value else "no"
