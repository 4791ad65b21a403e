"""What an engine of Ignite offers to hooks. Ignite itself is not imported."""

from __future__ import annotations

from dataclasses import replace

from hookbus.bridge import Capabilities

__all__ = ["CAPABILITIES", "select_capabilities"]

_MISSING = "call bridge.emit() in the update function of the engine, and pass update_emits=True to bus.attach."

CAPABILITIES = Capabilities(
    host="Ignite",
    bridge="hookbus_ignite.bridge:IgniteBridge",
    missing={"after_forward": _MISSING, "after_backward": _MISSING},
    approximate={
        "after_save_checkpoint": "it is emitted for the checkpoints of the handler that is passed as `save`.",
    },
    requests={"stop": "iteration", "stop_epoch": "iteration", "save": "now", "validation": "now"},
    gradients=("before_optimizer_step", "after_train_iter"),
    checkpoints=("host", "hookbus"),
)
"""Capabilities of `ignite.engine.Engine` with all arguments of `bus.attach` but `update_emits`."""


def select_capabilities(*, update_emits: bool, validates: bool, saves: bool) -> Capabilities:
    """Return what an engine offers with the arguments of `bus.attach`.

    Args:
        update_emits: Whether the update function emits its points, and skips micro-batches.
        validates: Whether there is a function that validates.
        saves: Whether there is a handler that saves.
    """
    missing = {name for name, is_available in {"validation": validates, "save": saves}.items() if not is_available}
    requests = {name: when for name, when in CAPABILITIES.requests.items() if name not in missing}
    if not update_emits:
        return replace(CAPABILITIES, requests=requests)
    gradients = ("after_backward", *CAPABILITIES.gradients)
    return replace(CAPABILITIES, requests={**requests, "skip": "iteration"}, missing={}, gradients=gradients)
