"""State of a custom loop in a checkpoint, as passed to `bus.run(state=...)`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hookbus._utils.arguments import is_function_pair
from hookbus.checkpoint.plain_data import to_plain_data
from hookbus.data.batches import detach_tree
from hookbus.errors import CheckpointError, format_error


def collect_loop_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a state under the key `state`; {} if it is empty. Tensors are references, not copies.

    Args:
        state: State of the loop, by name: pairs (get, set), or objects with `state_dict`.

    Raises:
        CheckpointError: If a state contains a value that is neither a built-in Python type nor a tensor.
    """
    values = {name: _get(name, entry) for name, entry in state.items()}
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


def _get(name: str, entry: Any) -> Any:
    """Return the value of an entry."""
    value = entry[0]() if is_function_pair(entry) else entry.state_dict()
    # Without the graph of the backward pass, as the hidden state of truncated backpropagation has.
    return to_plain_data(detach_tree(value), f"state[{name!r}]")
