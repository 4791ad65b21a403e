"""Lookup of the bridge of a trainer by its type, through the entry points of the group `hookbus.bridges`.

An entry point refers to the `Capabilities` of a trainer, so that neither the trainer nor its bridge is imported to
read them. Its name is the top-level package and the class of the trainer, such as `lightning.Trainer`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hookbus._run.host import Capabilities
from hookbus._utils.imports import resolve_import
from hookbus._utils.packages import BRIDGES_GROUP
from hookbus._utils.plugin_entries import PluginEntry
from hookbus.bridge.bridge import Bridge
from hookbus.discovery import list_entries, load_entry
from hookbus.errors import PluginError, PluginNotFoundError, suggest_names

if TYPE_CHECKING:
    from hookbus.bus import HookBus

PACKAGES = {
    "lightning": "hookbus-lightning",
    "pytorch_lightning": "hookbus-lightning",
    "lightning_fabric": "hookbus-lightning",
    "transformers": "hookbus-transformers",
    "accelerate": "hookbus-accelerate",
    "ignite": "hookbus-ignite",
    "mmengine": "hookbus-mmengine",
    "keras": "hookbus-keras",
}
"""Package of the hookbus project that connects the trainers of a top-level package."""


def attach(bus: HookBus, host: Any, **options: Any) -> Bridge:
    """Connect a bus with another trainer, which then emits the events of its trainings.

    Args:
        bus: Bus with the hooks.
        host: The trainer, such as a Lightning or Hugging Face Trainer.
        options: Arguments of the bridge.

    Returns:
        The bridge. Its `run` is the run in progress, and `detach()` undoes the connection.

    Raises:
        PluginNotFoundError: If no installed package connects this type of trainer.
        ConfigError: If a hook needs what the trainer does not offer, or an argument is invalid.
    """
    bridge_class = resolve_import(load_capabilities(find_entry_of(host)).bridge)
    bridge: Bridge = bridge_class(bus, host, **options)
    bridge.attach()
    return bridge


def find_entry_of(host: Any) -> PluginEntry:
    """Return the entry of the first class of a trainer that an installed package connects.

    Raises:
        PluginNotFoundError: If there is none. The message names the package to install.
    """
    entries = {entry.name: entry for entry in list_entries(BRIDGES_GROUP) if not entry.blocked}
    names = [f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(host).__mro__]
    for name in names:
        if name in entries:
            return entries[name]
    cls = host if isinstance(host, type) else type(host)
    kind = "the class " if isinstance(host, type) else ""
    raise PluginNotFoundError(
        f"bus.attach: no installed package connects this type, got {kind}{cls.__module__}.{cls.__qualname__}. "
        f"{_describe_fix(cls, entries)}"
    )


def _describe_fix(cls: type, installed: Collection[str]) -> str:
    """Return what to do instead of passing an object of a class, or the class itself, that no entry connects."""
    libraries = [base.__module__.partition(".")[0] for base in cls.__mro__]
    trainers = [name for name in sorted(installed) if name.partition(".")[0] in libraries]
    if trainers:
        return f"Pass an instance of {' or '.join(trainers)}."
    package = next((PACKAGES[library] for library in libraries if library in PACKAGES), None)
    return f"Run: pip install {package}" if package else "Emit the points in the loop, or open a run with bus.open."


def find_hosts(name: str) -> list[Capabilities]:
    """Return the capabilities of the trainers that a name refers to: `lightning`, or `lightning.Trainer`.

    Raises:
        PluginNotFoundError: If no installed package connects one.
    """
    entries = {entry.name: entry for entry in list_entries(BRIDGES_GROUP)}
    matching = [entry for key, entry in entries.items() if name.lower() in (key.lower(), key.partition(".")[0].lower())]
    if matching:
        return [load_capabilities(entry) for entry in matching]
    package = PACKAGES.get(name.lower())
    hint = f" Run: pip install {package}" if package else suggest_names(name, [*entries, *PACKAGES])
    raise PluginNotFoundError(f"host: no installed package connects a trainer of this name, got {name!r}.{hint}")


def load_capabilities(entry: PluginEntry) -> Capabilities:
    """Import the capabilities that an entry refers to.

    Raises:
        PluginError: If the entry refers to something else, or cannot be imported.
    """
    loaded = load_entry(entry)
    if not isinstance(loaded, Capabilities):
        raise PluginError(
            f"{entry.package} {entry.version}: the entry point {entry.name!r} of the group {BRIDGES_GROUP} should be "
            f"an instance of hookbus.bridge.Capabilities, got {loaded!r}."
        )
    return loaded
