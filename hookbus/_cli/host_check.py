"""Comparison of the hooks of a file with what another trainer offers, for `hookbus check --host`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus._run.host import Capabilities, Checkpoints
from hookbus._run.host_needs import compare_hooks
from hookbus._utils.packages import package_label
from hookbus.bridge.discovery import find_hosts
from hookbus.errors import ConfigError, PluginNotFoundError

if TYPE_CHECKING:
    from hookbus.bus import HookBus


@dataclass(frozen=True)
class HostRow:
    """What one hook can do in one trainer.

    Attributes:
        host: Name of the trainer.
        hook: Instance name of the hook.
        package: Package of the hook with its version.
        status: "works", "works approximately" or "cannot work".
        notes: Reasons and what to do instead, or the differences.
    """

    host: str
    hook: str
    package: str
    status: str
    notes: list[str]


def check_hooks_in_host(
    file: Path, overrides: Sequence[str], host: str, checkpoints: Checkpoints | None
) -> list[HostRow]:
    """Compare the hooks of a file with what the trainers offer to which a name refers.

    Args:
        file: Run file, of which only the hooks are used.
        overrides: Overrides of the file.
        host: Name such as `lightning` or `lightning.Fabric`.
        checkpoints: Owner of the checkpoints. Default: the first one that the trainer supports.

    Returns:
        One row per trainer and hook, in the order of the hooks.

    Raises:
        ConfigError: If no installed package connects such a trainer, the file is invalid, or a trainer does not support
            the owner of the checkpoints.
    """
    from hookbus._config.load import load_config
    from hookbus.bus import HookBus

    try:
        hosts = find_hosts(host)
    except PluginNotFoundError as error:
        raise ConfigError(f"--{error}") from None
    config = load_config(file, overrides)
    bus = HookBus(config.build_valid_hooks(), order=config.order)
    return [row for capabilities in hosts for row in _compare(bus, capabilities, checkpoints)]


def _compare(bus: HookBus, capabilities: Capabilities, checkpoints: Checkpoints | None) -> list[HostRow]:
    supported = capabilities.checkpoints
    if checkpoints is not None and checkpoints not in supported:
        names = " or ".join(map(repr, supported))
        raise ConfigError(f"--checkpoints: should be {names} in {capabilities.host}, got {checkpoints!r}.")
    reports = compare_hooks(bus.hooks, capabilities, checkpoints or supported[0])
    return [
        HostRow(
            capabilities.host,
            name,
            package_label(bus.hooks[name]),
            report.status,
            report.problems or list(report.differences.values()),
        )
        for name, report in reports.items()
    ]
