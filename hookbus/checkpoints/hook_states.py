"""What hooks keep in a checkpoint: by instance name their state, the version of its layout, package and config."""

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
    """What each hook wants to keep, by instance name, and what the run keeps of hooks that are not active.

    Raises:
        CheckpointError: a state holds something that is neither a plain value nor a tensor.
    """
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
    """Give each hook its part; what is missing or left over is reported, and what is left over is kept.

    Raises:
        CheckpointError: a hook cannot take its part, or its layout is of another version.
    """
    hooks = {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook)}
    run.unclaimed = {name: record for name, record in states.items() if name not in hooks}
    for name, hook in hooks.items():
        record = states.get(name)
        if record is None:
            if not hook.state_dict():
                continue
            run.logger.warning("The checkpoint holds no state of hook %r: it starts afresh.", name)
        elif record["version"] != hook.state_version:
            raise CheckpointError(
                f"hook {name!r}: the checkpoint holds version {record['version']} of its state ({record['package']}), "
                f"and the installed {package_of(hook)} reads version {hook.state_version}."
            )
        else:
            _load_hook(name, hook, record["state"])
    for name, record in run.unclaimed.items():
        if not record["state"]:
            continue
        run.logger.warning("The checkpoint holds state of hook %r (%s), which is not active.", name, record["package"])


def _load_hook(name: str, hook: Hook, state: dict[str, Any]) -> None:
    try:
        hook.load_state_dict(state)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"hook {name!r} ({package_of(hook)}) cannot take its state from the checkpoint: {in_one_line(error)}."
        ) from error
