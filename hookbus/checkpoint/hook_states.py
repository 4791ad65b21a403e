"""States of hooks and of a custom loop in a checkpoint.

Of a hook: by instance name, the state, its version, the package and the configuration. Of a loop: by name, the values
of `bus.run(state=...)`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookbus._utils.arguments import is_function_pair
from hookbus._utils.packages import package_label
from hookbus.checkpoint.plain_data import to_plain_data
from hookbus.data.batches import detach_tree
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
    for name, hook in _get_hooks(run).items():
        states[name] = {
            "state": to_plain_data(hook.state_dict(), f"hook {name!r}: state_dict()"),
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
    for name, hook in _get_hooks(run).items():
        if name in states:
            with _current_state(name, hook, states) as state:
                hook.check_state(state)


def restore_structure(run: Run, states: MutableMapping[str, Any]) -> None:
    """Let hooks rebuild what they added to the model and the optimizer, before the state of these is loaded.

    Raises:
        CheckpointError: If a hook raises an exception, or the state has a version that the hook cannot load.
    """
    for name, hook in _get_hooks(run).items():
        if name in states and type(hook).restore_structure is not Hook.restore_structure:
            with _current_state(name, hook, states) as state:
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
    hooks = _get_hooks(run)
    run.orphaned_hook_states = {name: record for name, record in states.items() if name not in hooks}
    for name, hook in hooks.items():
        if name in states:
            with _current_state(name, hook, states) as state:
                hook.load_state_dict(state)
        # A stateless hook may be added between runs without a warning.
        elif hook.state_dict():
            run.logger.warning("No state of hook %r in the checkpoint; it is re-initialized.", name)
    for name, record in run.orphaned_hook_states.items():
        if record["state"]:
            message = "The checkpoint contains state of hook %r (%s), which is not registered."
            run.logger.warning(message, name, record["package"])


def load_late_state(run: Run, name: str, hook: Hook) -> None:
    """Load the state of a hook that is registered after the run was resumed.

    Raises:
        CheckpointError: If the hook cannot load its state, or the state has a version that the hook cannot load.
    """
    with _current_state(name, hook, run.orphaned_hook_states) as state:
        hook.check_state(state)
        hook.load_state_dict(state)
    del run.orphaned_hook_states[name]


def _get_hooks(run: Run) -> dict[str, Hook]:
    return {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook)}


@contextmanager
def _current_state(name: str, hook: Hook, states: MutableMapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the state of a hook in its current version; a state of an older version is converted in `states`.

    Raises:
        CheckpointError: If the state has a newer version, the hook cannot convert it, or the block raises an exception.
    """
    try:
        if states[name]["version"] != hook.state_version:
            states[name] = _migrate(name, hook, states[name])
        yield states[name]["state"]
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"hook {name!r} ({package_label(hook)}): the state in the checkpoint cannot be loaded: "
            f"{format_error(error)}."
        ) from error


def _migrate(name: str, hook: Hook, record: Mapping[str, Any]) -> dict[str, Any]:
    version, current = record["version"], hook.state_version
    if not isinstance(version, int) or not isinstance(current, int) or version > current:
        raise _version_error(name, hook, record, "")
    try:
        state = hook.migrate_state(record["state"], version)
    except NotImplementedError:
        raise _version_error(name, hook, record, " and does not convert that version") from None
    if not isinstance(state, dict):
        raise TypeError(f"migrate_state: expected the converted state, got {type(state).__name__}. Return a dict")
    return {**record, "state": state, "version": current}


def _version_error(name: str, hook: Hook, record: Mapping[str, Any], reason: str) -> CheckpointError:
    return CheckpointError(
        f"hook {name!r}: the checkpoint contains state version {record['version']} ({record['package']}), but the "
        f"installed {package_label(hook)} loads version {hook.state_version}{reason}. Install the version that wrote "
        "the checkpoint."
    )


def collect_loop_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a state under the key `state`; {} if it is empty. Tensors are references, not copies.

    Args:
        state: State of the loop, by name: pairs (get, set), or objects with `state_dict`.

    Raises:
        CheckpointError: If a state contains a value that is neither a built-in Python type nor a tensor.
    """
    values = {}
    for name, entry in state.items():
        value = entry[0]() if is_function_pair(entry) else entry.state_dict()
        # Without the graph of the backward pass, as the hidden state of truncated backpropagation has.
        values[name] = to_plain_data(detach_tree(value), f"state[{name!r}]")
    return {"state": values} if values else {}


def load_loop_state(state: Mapping[str, Any], saved: Mapping[str, Any], logger: logging.Logger) -> None:
    """Load the values of a state; log missing and unknown entries.

    Args:
        state: State of the loop, by name: pairs (get, set), or objects with `state_dict`.
        saved: Values in a checkpoint, by name.
        logger: Logger of the warnings.

    Raises:
        CheckpointError: If an entry cannot be loaded.
    """
    for name, entry in state.items():
        if name not in saved:
            logger.warning("No state %r of the loop in the checkpoint; it is unchanged.", name)
            continue
        try:
            (entry[1] if is_function_pair(entry) else entry.load_state_dict)(saved[name])
        except Exception as error:
            raise CheckpointError(
                f"state[{name!r}]: the state in the checkpoint cannot be loaded: {format_error(error)}."
            ) from error
    for name in saved.keys() - state.keys():
        logger.warning("The checkpoint contains the state %r of the loop, but the run has none; it is ignored.", name)
