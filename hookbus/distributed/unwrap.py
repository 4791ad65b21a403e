"""Models and optimizers without their wrappers: `torch.compile`, DistributedDataParallel and similar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["unwrap_ddp", "unwrap_model", "unwrap_optimizer"]


def unwrap_ddp(model: Any) -> Any:
    """Return the model without DistributedDataParallel, as hooks receive it."""
    # By name: importing torch.nn.parallel only for this check would make every run slower to start.
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the module without wrappers.

    Wrappers are `torch.compile`, and modules without own parameters whose only child is named `module`, such as DDP.
    """
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and [name for name, _ in model.named_children()] == ["module"]:
            own = [*model.parameters(recurse=False), *model.buffers(recurse=False)]
            inner = None if own else model.module
        if inner is None:
            return model
        model = inner


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the torch optimizer inside of wrappers such as Accelerate's and Fabric's (attribute `optimizer`)."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer
