"""Numbers of parameters of the modules of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters of a module, with those of its submodules.

    Attributes:
        total: Number of elements, except those of `shared` and of uninitialized parameters.
        trainable: Number of those with `requires_grad`.
        shared: Number of elements of parameters that a module listed earlier contains as well, which counts them.
        uninitialized: Number of lazy parameters, whose shapes the first forward pass determines.
    """

    total: int = 0
    trainable: int = 0
    shared: int = 0
    uninitialized: int = 0


def count_parameters(model: nn.Module) -> Mapping[str, Parameters]:
    """Return the numbers of parameters by the name of the module; "" is the model.

    A parameter that several modules share belongs to the first one in the order of `named_modules()`, so that the
    numbers of modules which are not nested in each other add up to that of the model.
    """
    owners: dict[int, str] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), name)
    return {name: _count(name, module.parameters(), owners) for name, module in model.named_modules()}


def _count(name: str, parameters: Iterable[Tensor], owners: Mapping[int, str]) -> Parameters:
    sizes = {"total": 0, "trainable": 0, "shared": 0, "uninitialized": 0}
    for parameter in parameters:
        owner = owners[id(parameter)]
        if is_lazy(parameter):
            sizes["uninitialized"] += 1
        elif name and owner != name and not owner.startswith(f"{name}."):
            sizes["shared"] += parameter.numel()
        else:
            sizes["total"] += parameter.numel()
            sizes["trainable"] += parameter.numel() if parameter.requires_grad else 0
    return Parameters(**sizes)


def has_uninitialized(model: nn.Module) -> bool:
    """Return whether a parameter or buffer is uninitialized."""
    return any(map(is_lazy, [*model.parameters(), *model.buffers()]))


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of the elements of tensors in bytes; a tensor that occurs several times counts once."""
    unique = {id(tensor): tensor for tensor in tensors if not is_lazy(tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())
