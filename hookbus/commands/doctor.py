"""Which installed hooks are broken, and why? Each is imported in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hookbus import discovery
from hookbus._packages import unreadable
from hookbus.errors import PluginVersionError

__all__ = ["Report", "examine"]

SECONDS = 120
"""How long one import may take."""

DONE = "hookbus: imported"
PROBE = f"""
import sys
from hookbus import discovery
offer = next(o for o in discovery.offers() if o.full_name == sys.argv[1])
found = offer.entry.load()
if not isinstance(found, type):
    sys.exit(f"{{offer.entry.value}} is {{found!r}}, not a hook class")
print({DONE!r})
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found about one hook.

    Attributes:
        name: what it goes by in run files.
        package: the distribution with its version.
        ok: whether it can be used.
        problem: why not, in one line.
    """

    name: str
    package: str
    ok: bool
    problem: str


def examine() -> Iterator[Report]:
    """Look at every installed hook, by name. A broken one, even one that kills its process, breaks nothing else."""
    there = discovery.listed_names(discovery.offers())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (offer, name), problem in zip(there.items(), pool.map(_problem_of, there), strict=True):
            problem = problem or _clash(offer, list(there))
            yield Report(name, f"{offer.package} {offer.version}", not problem, problem)
    for package, flaw in unreadable().items():
        yield Report("", package, False, f"what it offers cannot be read: {flaw}; install it again")


def _problem_of(offer: discovery.Offer) -> str:
    try:
        discovery.check_version(offer)
    except PluginVersionError as error:
        return str(error)
    return _import(offer)


def _clash(offer: discovery.Offer, there: list[discovery.Offer]) -> str:
    others = [each.package for each in there if each.name == offer.name and each.package != offer.package]
    if not others:
        return ""
    return f"{', '.join(others)} offers {offer.name!r} as well; write {offer.full_name!r} in run files"


def _import(offer: discovery.Offer) -> str:
    """The reason why an offer cannot be imported; "" if it can."""
    command = [sys.executable, "-W", "ignore", "-c", PROBE, offer.full_name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"importing it took longer than {SECONDS} seconds"
    if done.returncode < 0:
        return f"importing it killed the process by {signal.Signals(-done.returncode).name}"
    if done.returncode == 0 and done.stdout.rstrip().endswith(DONE):
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"importing it ended the process with code {done.returncode}"
