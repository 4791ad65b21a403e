"""Restore optimizer, scheduler, scaler and gradients from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._training.scheduler_length import load_scheduler
from hookbus.distributed.unwrap import match_names, unwrap_model
from hookbus.errors import CheckpointError

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = ["get_optimizer_state", "load_component", "load_grads"]


def get_optimizer_state(checkpoint: Mapping[str, Any], name: str) -> Any:
    """Return the state of an optimizer in a checkpoint, empty without one.

    Args:
        checkpoint: The checkpoint.
        name: Name of the optimizer, "" for the only one.
    """
    state = checkpoint.get("optimizer", {})
    return state.get(name, {}) if name else state


def load_component(run: Run, name: str, checkpoint: Mapping[str, Any]) -> None:
    """Load the state of an optimizer, scheduler or scaler; log a warning if only the run or the checkpoint has one.

    Args:
        run: Run to restore.
        name: "optimizer", "scheduler" or "scaler".
        checkpoint: Checkpoint to load from.

    Raises:
        CheckpointError: If the state does not match.
    """
    part = getattr(run, name)
    if part is None:
        if name in checkpoint:
            run.logger.warning("The checkpoint contains a %s state, but the run has no %s; it is ignored.", name, name)
        return
    if name not in checkpoint:
        run.logger.warning("No %s state in the checkpoint; it is re-initialized.", name)
        return
    _check_type(name, part, checkpoint[name])
    try:
        if name == "scheduler":
            for message in load_scheduler(part, checkpoint[name]):
                run.logger.warning("scheduler: %s", message)
        else:
            part.load_state_dict(checkpoint[name])
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"The {name} state in the checkpoint does not match the run: {error}") from error


def _check_type(name: str, part: Any, saved: Mapping[str, Any]) -> None:
    """Raise if a saved optimizer state lacks options of the optimizer, as the state of another optimizer class does."""
    # `Optimizer.load_state_dict` accepts the state of another class, and the next `step` raises a KeyError.
    required = set(getattr(part, "defaults", ()))
    for group in saved.get("param_groups", ()) if required else ():
        missing = sorted(required - set(group))
        if missing:
            raise CheckpointError(
                f"The {name} state in the checkpoint is not of type {type(part).__name__}: it has no "
                f"{', '.join(missing)}. Use the {name} of the checkpoint, or set `load_from` to start from its "
                "weights alone."
            )


def load_grads(run: Run, grads: Mapping[str, Any]) -> None:
    """Restore the gradients of an incomplete accumulation.

    Args:
        run: Run with a model.
        grads: Gradients by parameter name; the gradient of any other parameter is set to None.
    """
    assert run.model is not None
    model = unwrap_model(run.model)
    renaming = match_names(model, grads)
    saved = {renaming.get(name): grad for name, grad in grads.items()}
    for name, parameter in model.named_parameters():
        grad = saved.get(name)
        parameter.grad = None if grad is None else grad.to(parameter.device, parameter.dtype)
