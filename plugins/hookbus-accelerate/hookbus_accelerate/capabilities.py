"""What a loop with Accelerate offers to hooks. Accelerate itself is not imported."""

from __future__ import annotations

from hookbus.bridge import Capabilities

__all__ = ["CAPABILITIES"]

_PARTIAL = "it is emitted by accelerator.backward with the loss, without the batch and the outputs."
_VALIDATION = "it is emitted if the validation function of the loop emits it."

CAPABILITIES = Capabilities(
    host="Accelerate",
    bridge="hookbus_accelerate.bridge:AccelerateBridge",
    approximate={
        "after_forward": _PARTIAL,
        "after_backward": _PARTIAL,
        "before_val_iter": _VALIDATION,
        "after_val_iter": _VALIDATION,
    },
    requests={"stop": "iteration", "stop_epoch": "iteration", "save": "now", "validation": "now", "skip": "iteration"},
    gradients=("after_backward", "before_optimizer_step"),  # the loop zeroes them after the step
    data=True,
    checkpoints=("host", "hookbus"),
    step="a step of the prepared optimizer",
)
"""Capabilities of a loop with `accelerate.Accelerator`."""
