"""Models whose weights are spread over the processes of a run, each of which has a part of them (FSDP2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookbus.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from hookbus.ranks import Ranks

__all__ = ["check_mesh", "gathered", "spread_model", "take_main_buffers"]


def spread_model(
    model: nn.Module,
    optimizer: Optimizer | None,
    ranks: Ranks,
    device: torch.device,
    *,
    wrap: Sequence[str] = (),
    mesh: Sequence[int] | None = None,
) -> None:
    """Spread the weights of a model over all processes. All begin with those of the main one.

    Between two calls each process has its part of every weight. The modules that are named in `wrap` come together one
    after the other when they are called, and then the rest of the model; without any, the whole model does at once.

    Args:
        model: the model, on its device; it is changed in place.
        optimizer: gets the spread weights in the place of whole ones; None where it is still to be made.
        ranks: the processes.
        device: where the model is.
        wrap: class names of modules.
        mesh: how the processes are arranged: one number for all of them; two for copies of the model times parts.

    Raises:
        ConfigError: there are no such modules or not so many processes, or the optimizer has made updates already.
    """
    from torch.distributed.fsdp import fully_shard

    parts = _parts(model, wrap)
    arranged = _mesh(device, check_mesh(mesh, ranks.world_size))
    before = dict(model.named_parameters(remove_duplicate=False))
    _begin_with_main(model)
    for part in (*parts, model):
        fully_shard(part, mesh=arranged, reshard_after_forward=True)
    if optimizer is not None:
        _exchange(optimizer, before, dict(model.named_parameters(remove_duplicate=False)))


def check_mesh(mesh: Sequence[int] | None, processes: int) -> tuple[int, ...]:
    """How so many processes are arranged.

    Raises:
        ConfigError: there are not as many as the mesh has places.
    """
    shape = (processes,) if mesh is None else tuple(mesh)
    if len(shape) not in (1, 2) or math.prod(shape) != processes:
        raise ConfigError(
            [
                f"fsdp2.mesh: {list(shape)} is not for {processes} processes. Say [{processes}], or two numbers whose "
                "product that is: copies of the model, and parts of each."
            ]
        )
    return shape


@contextmanager
def gathered(model: nn.Module | None) -> Iterator[None]:
    """While this lasts every process has all weights of the model, and calls it without asking the others.

    Does nothing for a model whose weights are not spread. Called on every process.
    """
    parts = _spread_parts(model)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def take_main_buffers(model: nn.Module) -> None:
    """Let the buffers of a model be those of the main process. Called on every process."""
    import torch
    import torch.distributed as dist

    alike: dict[Any, list[torch.Tensor]] = {}
    for buffer in model.buffers():
        alike.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
    for buffers in alike.values():
        together = torch.cat([buffer.reshape(-1) for buffer in buffers])
        dist.broadcast(together, src=0)
        parts = together.split([buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))


# -- inside ----------------------------------------------------------------------------------


def _spread_parts(model: nn.Module | None) -> list[Any]:
    module = sys.modules.get("torch.distributed.fsdp")  # without it none is spread, and it takes long to import
    if model is None or module is None:
        return []
    return [each for each in model.modules() if isinstance(each, module.FSDPModule)]


def _parts(model: nn.Module, wrap: Sequence[str]) -> list[nn.Module]:
    """The modules of these classes, inner ones first."""
    inner = [each for each in model.modules() if each is not model]
    known = {type(each).__name__ for each in inner}
    wrong = [
        f"fsdp2.wrap: the model has no module {name!r}.{did_you_mean(name, known)}"
        for name in wrap
        if name not in known
    ]
    if wrong:
        raise ConfigError(wrong)
    return [each for each in reversed(inner) if type(each).__name__ in wrap]


def _mesh(device: torch.device, shape: tuple[int, ...]) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, shape, mesh_dim_names=("copies", "parts")[-len(shape) :])


def _begin_with_main(model: nn.Module) -> None:
    import torch.distributed as dist

    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def _exchange(optimizer: Optimizer, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> None:
    """Let an optimizer that was made for the whole weights have the spread ones."""
    if optimizer.state:
        raise ConfigError(
            ["fsdp2: the optimizer has made updates already. Give a new one, or a function that makes it."]
        )
    spread = {id(weight): after[name] for name, weight in before.items()}
    for group in optimizer.param_groups:
        group["params"] = [spread.get(id(weight), weight) for weight in group["params"]]
