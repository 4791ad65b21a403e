"""Hook states of a checkpoint: by instance name, the state, its version, the package and the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._utils.packages import package_label
from hookbus.checkpoint.plain_data import to_plain_data
from hookbus.errors import CheckpointError, format_error
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = ["collect_hook_states", "load_hook_states"]


def collect_hook_states(run: Run) -> dict[str, Any]:
    """Return the state of each registered hook, and the unclaimed states of the checkpoint that was resumed from.

    Raises:
        CheckpointError: If a state contains a value that is neither a built-in Python type nor a tensor.
    """
    # Unclaimed states are carried over, so that a hook can be re-added several resumes later.
    states: dict[str, Any] = dict(run.orphaned_hook_states)
    for name, hook in run.bus.hooks.items():
        if not isinstance(hook, Hook):
            continue
        state = to_plain_data(hook.state_dict(), f"hook {name!r}: state_dict()")
        states[name] = {
            "state": state,
            "version": hook.state_version,
            "type": type(hook).__name__,
            "package": package_label(hook),
            "config": json.loads(hook.config.set_fields_json),
        }
    return states


def load_hook_states(run: Run, states: Mapping[str, Any]) -> None:
    """Load the state of each hook; log missing states, and keep states without a hook for the next checkpoint.

    Raises:
        CheckpointError: If a hook cannot load its state, or the state has another version.
    """
    hooks = {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook)}
    run.orphaned_hook_states = {name: record for name, record in states.items() if name not in hooks}
    for name, hook in hooks.items():
        record = states.get(name)
        if record is None:
            # A stateless hook may be added between runs without a warning.
            if not hook.state_dict():
                continue
            run.logger.warning("No state of hook %r in the checkpoint; it is re-initialized.", name)
        elif record["version"] != hook.state_version:
            raise CheckpointError(
                f"hook {name!r}: the checkpoint contains state version {record['version']} ({record['package']}), "
                f"but the installed {package_label(hook)} loads version {hook.state_version}. Install the version that "
                "wrote the checkpoint."
            )
        else:
            _load_hook_state(name, hook, record["state"])
    for name, record in run.orphaned_hook_states.items():
        if not record["state"]:
            continue
        run.logger.warning(
            "The checkpoint contains state of hook %r (%s), which is not registered.", name, record["package"]
        )


def _load_hook_state(name: str, hook: Hook, state: dict[str, Any]) -> None:
    try:
        hook.load_state_dict(state)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"hook {name!r} ({package_label(hook)}): the state in the checkpoint cannot be loaded: "
            f"{format_error(error)}."
        ) from error
