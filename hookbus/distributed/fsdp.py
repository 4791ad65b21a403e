"""Fully sharded data parallel training with FSDP2 (`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookbus.errors import ConfigError, suggest_names

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from hookbus.distributed.collectives import Collectives


def apply_fsdp(
    model: nn.Module,
    optimizer: Optimizer | None,
    ranks: Collectives,
    device: torch.device,
    *,
    wrap: Sequence[str] = (),
    mesh: Sequence[int] | None = None,
) -> None:
    """Apply FSDP2 to a model. Initial parameters and buffers are those of rank 0.

    Between two calls each rank stores one shard of every parameter. Each module of a class in `wrap` is all-gathered
    when it is called; the other parameters of the model are all-gathered with the root module.

    Args:
        model: Model on its device; modified in place.
        optimizer: Optimizer whose parameters are replaced by sharded ones; None if it is created later.
        ranks: Collective communication between the processes.
        device: Device of the model.
        wrap: Class names of modules to shard separately.
        mesh: Shape of the device mesh: [shards], or [replicas, shards] for hybrid sharding (HSDP). Default: all
            processes in one dimension.

    Raises:
        ConfigError: If the model has no module of a class in `wrap`, the mesh does not match the number of processes,
            or the optimizer has executed steps already.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    modules = _find_modules(model, wrap)
    shape = validate_mesh(mesh, ranks.world_size)
    device_mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    before = dict(model.named_parameters(remove_duplicate=False))
    # Before sharding: `fully_shard` keeps the local values of each rank.
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    # Inner modules first, as `fully_shard` requires; the root module contains the remaining parameters.
    for module in (*modules, model):
        fully_shard(module, mesh=device_mesh, reshard_after_forward=True)
    if optimizer is not None:
        _swap_parameters(optimizer, before, dict(model.named_parameters(remove_duplicate=False)))


def validate_mesh(mesh: Sequence[int] | None, processes: int) -> tuple[int, ...]:
    """Validate the shape of the device mesh.

    Args:
        mesh: Shape of the mesh; None for one dimension.
        processes: Number of processes.

    Returns:
        The shape, of one or two dimensions.

    Raises:
        ConfigError: If the product of the shape is not the number of processes.
    """
    shape = (processes,) if mesh is None else tuple(mesh)
    if len(shape) not in (1, 2) or math.prod(shape) != processes:
        raise ConfigError(
            f"fsdp2.mesh: the product must be the number of processes ({processes}), got {list(shape)}. Set "
            f"[{processes}], or [replicas, shards]."
        )
    return shape


def get_fsdp_modules(model: nn.Module | None) -> list[Any]:
    """Return the modules of a model to which `fully_shard` was applied.

    Raises:
        ConfigError: If there are any and torch is too old.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")  # slow to import; not imported means not sharded
    if model is None or fsdp is None:
        return []
    modules = [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]
    if modules:
        from hookbus._utils.torch_versions import require_torch  # imports torch

        require_torch("fully_shard")
    return modules


@contextmanager
def unsharded(model: nn.Module | None) -> Iterator[None]:
    """Context manager in which every rank stores the full parameters and the forward pass needs no communication.

    No effect on a model that is not sharded. A collective call.
    """
    modules = get_fsdp_modules(model)
    for module in modules:
        # Otherwise the first forward pass would reshard the module, and ranks with fewer batches would block.
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


def unshard(model: nn.Module) -> None:
    """All-gather the parameters of a model inside of `unsharded` after its state dict was read, which reshards it.

    No effect on a model that is not sharded. A collective call.
    """
    for module in get_fsdp_modules(model):
        module.unshard()


def broadcast_buffers(model: nn.Module) -> None:
    """Broadcast the buffers of a model from rank 0. A collective call."""
    import torch
    import torch.distributed as dist

    groups: dict[Any, list[torch.Tensor]] = {}
    for buffer in model.buffers():
        groups.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
    # One broadcast per dtype and device instead of one per buffer.
    for buffers in groups.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        dist.broadcast(flat, src=0)
        values = flat.split([buffer.numel() for buffer in buffers])
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value.view_as(buffer))


# -- implementation --------------------------------------------------------------------------


def _find_modules(model: nn.Module, wrap: Sequence[str]) -> list[nn.Module]:
    """Return the modules of the given classes, inner ones first.

    Raises:
        ConfigError: If the model has no module of a class.
    """
    inner = [module for module in model.modules() if module is not model]
    known = {type(module).__name__ for module in inner}
    errors = [
        f"fsdp2.wrap: the model has no module {name!r}.{suggest_names(name, known)}"
        for name in wrap
        if name not in known
    ]
    if errors:
        raise ConfigError(errors)
    return [module for module in reversed(inner) if type(module).__name__ in wrap]


def _swap_parameters(optimizer: Optimizer, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> None:
    """Replace the parameters of an optimizer by the sharded ones of the same names.

    Raises:
        ConfigError: If the optimizer has state.
    """
    if optimizer.state:
        raise ConfigError(
            "fsdp2: the optimizer must not have executed steps before the model is sharded. Pass a new optimizer, or a "
            "function that creates one."
        )
    sharded = {id(weight): after[name] for name, weight in before.items()}
    for group in optimizer.param_groups:
        group["params"] = [sharded.get(id(weight), weight) for weight in group["params"]]
