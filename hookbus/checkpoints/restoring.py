"""The parts of a checkpoint go back into the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus.errors import CheckpointError
from hookbus.model.wrappers import unwrapped

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["load_grads", "load_part"]


def load_part(run: Run, name: str, checkpoint: Mapping[str, Any]) -> None:
    """Put the state of an optimizer, a scheduler or a scaler back; where only one side has any, that is told.

    Args:
        run: the run.
        name: "optimizer", "scheduler" or "scaler".
        checkpoint: what was saved.

    Raises:
        CheckpointError: the state is that of something else.
    """
    part = getattr(run, name)
    if part is None:
        if name in checkpoint:
            run.logger.warning("The checkpoint holds a %s, and this run has none: it is left out.", name)
        return
    if name not in checkpoint:
        run.logger.warning("The checkpoint holds no %s: it starts afresh.", name)
        return
    _check_kind(name, part, checkpoint[name])
    try:
        part.load_state_dict(checkpoint[name])
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"The {name} of the checkpoint does not fit this run's: {error}") from error


def _check_kind(name: str, part: Any, saved: Mapping[str, Any]) -> None:
    """Torch takes the state of another kind of optimizer, and fails at the next update."""
    needed = set(getattr(part, "defaults", ()))
    for group in saved.get("param_groups", ()) if needed else ():
        missing = sorted(needed - set(group))
        if missing:
            raise CheckpointError(
                f"The {name} of the checkpoint is of another kind than {type(part).__name__}: it has no "
                f"{', '.join(missing)}. Use that one, or say load_from to start from the weights alone."
            )


def load_grads(run: Run, grads: Mapping[str, Any]) -> None:
    """Put the gradients of an unfinished group of micro-batches back.

    Args:
        run: the run, which has a model.
        grads: by parameter name; a parameter that is not among them has none.
    """
    assert run.model is not None
    for name, parameter in unwrapped(run.model).named_parameters():
        grad = grads.get(name)
        parameter.grad = None if grad is None else grad.to(parameter.device, parameter.dtype)
