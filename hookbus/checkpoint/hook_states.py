"""Hook states of a checkpoint: by instance name, the state, its version, the package and the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookbus._utils.packages import package_label
from hookbus.checkpoint.plain_data import to_plain_data
from hookbus.errors import CheckpointError, format_error
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._run.run import Run

STRUCTURE_FIX = (
    "Hooks that add modules or parameter groups rebuild them in `restore_structure`, before the state is loaded."
)
"""End of the message about a model or optimizer without what a hook has added."""


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


def check_hook_states(run: Run, states: MutableMapping[str, Any]) -> None:
    """Let hooks check their states, after the structure of the model is rebuilt and before anything is restored.

    Raises:
        CheckpointError: If a hook refuses its state, or the state has a version that the hook cannot load.
    """
    for name, hook in list(run.bus.hooks.items()):
        if isinstance(hook, Hook) and name in states:
            state = _get_state(name, hook, states)
            with _wrap_errors(name, hook):
                hook.check_state(state)


def restore_structure(run: Run, states: MutableMapping[str, Any]) -> None:
    """Let hooks rebuild what they added to the model and the optimizer, before the state of these is loaded.

    Raises:
        CheckpointError: If a hook raises an exception, or the state has a version that the hook cannot load.
    """
    for name, hook in list(run.bus.hooks.items()):
        if isinstance(hook, Hook) and name in states and type(hook).restore_structure is not Hook.restore_structure:
            state = _get_state(name, hook, states)
            with _wrap_errors(name, hook):
                hook.check_state(state)
                hook.restore_structure(run, state)


@contextmanager
def explain_changed_model(checkpoint: Mapping[str, Any]) -> Iterator[None]:
    """Add the fix to an error about the weights if hooks changed the model of the checkpoint during the run."""
    try:
        yield
    except CheckpointError as error:
        if "initial_structure" not in checkpoint["meta"]:
            raise
        changed = "The model was changed during the run that wrote the checkpoint."
        raise CheckpointError(f"{error} {changed} {STRUCTURE_FIX}") from None


def load_hook_states(run: Run, states: MutableMapping[str, Any]) -> None:
    """Load the state of each hook; log missing states, and keep states without a hook for the next checkpoint.

    Raises:
        CheckpointError: If a hook cannot load its state, or the state has a version that the hook cannot load.
    """
    hooks = {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook)}
    run.orphaned_hook_states = {name: record for name, record in states.items() if name not in hooks}
    for name, hook in hooks.items():
        if name not in states:
            # A stateless hook may be added between runs without a warning.
            if not hook.state_dict():
                continue
            run.logger.warning("No state of hook %r in the checkpoint; it is re-initialized.", name)
        else:
            state = _get_state(name, hook, states)
            with _wrap_errors(name, hook):
                hook.load_state_dict(state)
    for name, record in run.orphaned_hook_states.items():
        if not record["state"]:
            continue
        run.logger.warning(
            "The checkpoint contains state of hook %r (%s), which is not registered.", name, record["package"]
        )


def load_late_state(run: Run, name: str, hook: Hook) -> None:
    """Load the state of a hook that is registered after the run was resumed.

    Args:
        run: Resumed run, whose checkpoint contains a state of the hook.
        name: Instance name of the hook.
        hook: The hook.

    Raises:
        CheckpointError: If the hook cannot load its state, or the state has a version that the hook cannot load.
    """
    state = _get_state(name, hook, run.orphaned_hook_states)
    with _wrap_errors(name, hook):
        hook.check_state(state)
        hook.load_state_dict(state)
    del run.orphaned_hook_states[name]


def _get_state(name: str, hook: Hook, states: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return the state of a hook in its current version. A state of an older version is converted in `states`.

    Raises:
        CheckpointError: If the state has a newer version, or the hook cannot convert it.
    """
    record = states[name]
    version, current = record["version"], hook.state_version
    if version != current:
        if not isinstance(version, int) or not isinstance(current, int) or version > current:
            raise _version_error(name, hook, record, "")
        states[name] = record = {**record, "state": _migrate(name, hook, record), "version": current}
    state: dict[str, Any] = record["state"]
    return state


def _migrate(name: str, hook: Hook, record: Mapping[str, Any]) -> dict[str, Any]:
    with _wrap_errors(name, hook):
        try:
            state = hook.migrate_state(record["state"], record["version"])
        except NotImplementedError:
            raise _version_error(name, hook, record, " and does not convert that version") from None
        if not isinstance(state, dict):
            raise TypeError(f"migrate_state: expected the converted state, got {type(state).__name__}. Return a dict")
        return state


def _version_error(name: str, hook: Hook, record: Mapping[str, Any], reason: str) -> CheckpointError:
    return CheckpointError(
        f"hook {name!r}: the checkpoint contains state version {record['version']} ({record['package']}), but the "
        f"installed {package_label(hook)} loads version {hook.state_version}{reason}. Install the version that wrote "
        "the checkpoint."
    )


@contextmanager
def _wrap_errors(name: str, hook: Hook) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"hook {name!r} ({package_label(hook)}): the state in the checkpoint cannot be loaded: "
            f"{format_error(error)}."
        ) from error
