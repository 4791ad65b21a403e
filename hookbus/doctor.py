"""Which installed hooks are broken, and why? Each is imported in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from hookbus import discovery
from hookbus.errors import PluginVersionError

__all__ = ["Report", "examine"]

SECONDS = 120
"""How long one import may take."""

PROBE = """
import sys
from hookbus import discovery
from hookbus.hook import Hook
offer = next(o for o in discovery.offers() if o.full_name == sys.argv[1])
found = offer.entry.load()
if not (isinstance(found, type) and issubclass(found, Hook)):
    sys.exit(f"{offer.entry.value} is {found!r}, not a subclass of hookbus.Hook")
found.Config.model_json_schema()
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found about one hook.

    Attributes:
        name: its entry point.
        package: the distribution with its version.
        ok: whether it can be used.
        problem: why not, in one line.
    """

    name: str
    package: str
    ok: bool
    problem: str


def examine() -> Iterator[Report]:
    """Look at every installed hook. A broken one, even one that kills its process, breaks nothing else."""
    there = discovery.offers()
    for offer in there:
        package = f"{offer.package} {offer.version}"
        clash = sorted({each.package for each in there if each.name == offer.name} - {offer.package})
        if clash:
            problem = f"{', '.join(clash)} offers this name as well: name it {offer.full_name!r} in run files"
            yield Report(offer.name, package, False, problem)
            continue
        try:
            discovery.check_version(offer)
        except PluginVersionError as error:
            yield Report(offer.name, package, False, str(error))
            continue
        problem = _import(offer)
        yield Report(offer.name, package, not problem, problem)


def _import(offer: discovery.Offer) -> str:
    """The reason why an offer cannot be imported; "" if it can."""
    command = [sys.executable, "-W", "ignore", "-c", PROBE, offer.full_name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"importing it took longer than {SECONDS} seconds"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"importing it killed the process with signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"importing it ended the process with code {done.returncode}"
