"""A model inside what is put around it: `torch.compile`, DistributedDataParallel and its like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["inside_ddp", "unwrapped"]


def inside_ddp(model: Any) -> Any:
    """The model that hooks see: the one inside torch's DistributedDataParallel, where there is that wrapper."""
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside wrappers: `torch.compile`, and modules whose one child is named `module` (DDP and its like)."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and [name for name, _ in model.named_children()] == ["module"]:
            own = [*model.parameters(recurse=False), *model.buffers(recurse=False)]
            inner = None if own else model.module
        if inner is None:
            return model
        model = inner
