"""Size of the checkpoints of a run, before it has trained."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookbus._run.run import Run


def estimate_checkpoint_size(run: Run, *, optimizer: bool = True) -> int | None:
    """Return about the number of bytes of a checkpoint: model, loss function, optimizers, and averaged weights.

    Args:
        run: The run, which need not have started.
        optimizer: Whether the checkpoint contains the state of the optimizers. Default: True.

    Returns:
        Size in bytes, without the other states of hooks. None if the state of an optimizer cannot be determined.
    """
    modules = [module for module in (run.model, run.loss) if module is not None]
    weights = sum(count_bytes(module.state_dict()) for module in modules)
    averages = sum(bool(getattr(hook, "averages_weights", False)) for hook in run.bus.hooks.values())
    states = [_estimate_optimizer_state(item) for item in run.optimizers.values()] if optimizer else []
    sizes = [weights, averages * weights, *states]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def count_bytes(value: Any) -> int:
    """Return the number of bytes of all tensors in nested mappings and sequences; of numbers, none."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    children: Iterable[Any] = ()
    if isinstance(value, Mapping):
        children = value.values()
    elif isinstance(value, (list, tuple)):
        children = value
    return sum(map(count_bytes, children))


def _estimate_optimizer_state(optimizer: Optimizer) -> int | None:
    """Return the size of the state of an optimizer after a step of its copy, whose parameters have no memory."""
    import torch

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    twins: dict[int, Any] = {}
    for parameter in parameters:
        twin = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        twin.grad = torch.empty_like(twin) if parameter.requires_grad else None
        twins[id(parameter)] = twin
    try:
        # `deepcopy` takes what it has copied already from this mapping.
        copied = copy.deepcopy(optimizer, dict(twins))
        copied.step()
        return count_bytes(copied.state_dict()["state"])
    except Exception:  # an optimizer of another package, or one that requires a device or a closure
        return None
