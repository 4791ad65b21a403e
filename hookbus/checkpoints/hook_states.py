"""Hook states of a checkpoint: by instance name, the state, its version, the package and the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._packages import package_of
from hookbus.checkpoints.plain import plain_state
from hookbus.errors import CheckpointError, in_one_line
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["load_hooks", "states_of_hooks"]


def states_of_hooks(run: Run) -> dict[str, Any]:
    """Return the state of each registered hook, and the unclaimed states of the checkpoint that was resumed from.

    Raises:
        CheckpointError: If a state contains a value that is neither a built-in Python type nor a tensor.
    """
    # Unclaimed states are carried over, so that a hook can be re-added several resumes later.
    states: dict[str, Any] = dict(run.unclaimed)
    for name, hook in run.bus.hooks.items():
        if not isinstance(hook, Hook):
            continue
        state = plain_state(hook.state_dict(), f"hook {name!r}: state_dict()")
        states[name] = {
            "state": state,
            "version": hook.state_version,
            "type": type(hook).__name__,
            "package": package_of(hook),
            "config": json.loads(hook.config.given_as_json),
        }
    return states


def load_hooks(run: Run, states: Mapping[str, Any]) -> None:
    """Load the state of each hook; log missing states, and keep states without a hook for the next checkpoint.

    Raises:
        CheckpointError: If a hook cannot load its state, or the state has another version.
    """
    hooks = {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook)}
    run.unclaimed = {name: record for name, record in states.items() if name not in hooks}
    for name, hook in hooks.items():
        record = states.get(name)
        if record is None:
            # A stateless hook may be added between runs without a warning.
            if not hook.state_dict():
                continue
            run.logger.warning("No state of hook %r in the checkpoint; it is re-initialized.", name)
        elif record["version"] != hook.state_version:
            raise CheckpointError(
                f"hook {name!r}: the checkpoint contains state version {record['version']} ({record['package']}), but "
                f"the installed {package_of(hook)} loads version {hook.state_version}. Install the version that wrote "
                "the checkpoint."
            )
        else:
            _load_hook(name, hook, record["state"])
    for name, record in run.unclaimed.items():
        if not record["state"]:
            continue
        run.logger.warning(
            "The checkpoint contains state of hook %r (%s), which is not registered.", name, record["package"]
        )


def _load_hook(name: str, hook: Hook, state: dict[str, Any]) -> None:
    try:
        hook.load_state_dict(state)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"hook {name!r} ({package_of(hook)}): the state in the checkpoint cannot be loaded: {in_one_line(error)}."
        ) from error
