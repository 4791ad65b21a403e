"""How tensors are spread over processes, and whole tensors spread in the same way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookbus.model.wrappers import unwrapped

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement
    from torch.optim import Optimizer

__all__ = ["Change", "Layout", "changed", "has_spread", "is_spread", "layout_of", "spread_like", "whole"]

OPTIMIZER = "optimizer"
Path = tuple[str, ...]
Change = Callable[[Path, Any], Any]
"""Given the path of a leaf, key by key, and the leaf; returns what shall be there instead."""


def is_spread(value: object) -> bool:
    """Whether a value is a tensor of which each process holds a part."""
    module = sys.modules.get("torch.distributed.tensor")  # without it there is none, and it takes long to import
    return module is not None and isinstance(value, module.DTensor)


def has_spread(value: Any) -> bool:
    """Whether there is such a tensor in a checkpoint, or a part of one."""
    if isinstance(value, (dict, list, tuple)):
        return any(map(has_spread, value.values() if isinstance(value, dict) else value))
    return is_spread(value)


@dataclass(frozen=True, slots=True)
class Layout:
    """Over which processes tensors are spread, and how.

    Attributes:
        mesh: the processes.
        placements: for each dimension of the mesh, whether tensors are split or repeated along it.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]

    def empty(self, like: Tensor) -> DTensor:
        """A spread tensor of the same shape and type, its numbers still unknown."""
        from torch.distributed.tensor import empty

        return empty(*like.shape, dtype=like.dtype, device_mesh=self.mesh, placements=self.placements)

    def spread(self, whole: Tensor) -> DTensor:
        """This process's part of a tensor that every process has as a whole. Nothing is sent."""
        from torch.distributed.tensor import distribute_tensor

        on_device = whole.detach().to(self.mesh.device_type)
        return distribute_tensor(on_device, self.mesh, self.placements, src_data_rank=None)


def layout_of(model: nn.Module | None) -> Layout | None:
    """How the weights of a model are spread; None where each process has them all."""
    parameters = [] if model is None else unwrapped(model).parameters()
    spread = next((each for each in parameters if is_spread(each)), None)
    return None if spread is None else Layout(spread.device_mesh, tuple(spread.placements))  # type: ignore[attr-defined]


def changed(value: Any, change: Change, path: Path = ()) -> Any:
    """A checkpoint, or a part of one, with other leaves.

    Args:
        value: dicts, lists and tuples of anything; they are copied.
        change: called for everything else.
        path: where the part is in the whole.
    """
    if isinstance(value, dict):
        made = type(value)()
        made.update({key: changed(each, change, (*path, str(key))) for key, each in value.items()})
        return made
    if isinstance(value, (list, tuple)):
        return type(value)([changed(each, change, (*path, str(i))) for i, each in enumerate(value)])
    return change(path, value)


def whole(value: Any) -> Any:
    """A checkpoint, or a part of one, with whole tensors. Called on every process: each sends what it has to all."""
    if not has_spread(value):
        return value
    return changed(value, lambda _, each: each.full_tensor() if is_spread(each) else each)


def spread_like(checkpoint: Mapping[str, Any], model: nn.Module | None, optimizer: Optimizer | None) -> dict[str, Any]:
    """A checkpoint whose tensors are spread as those of a run are, so that they can be copied into them.

    What has the name and the shape of a spread weight is spread like it, wherever it stands: averages and the states of
    hooks included. So is what an optimizer keeps of a weight and has its shape. Nothing is sent between processes.

    Args:
        checkpoint: a checkpoint, or a bare state dict.
        model: the run's model; where its weights are not spread, the checkpoint comes back as it is.
        optimizer: the run's optimizer.
    """
    layout = layout_of(model)
    if layout is None:
        return dict(checkpoint)
    shapes = _shapes(checkpoint, model, optimizer)

    def place(path: Path, value: Any) -> Any:
        shape = shapes.get(path[:3] if path[0] == OPTIMIZER else path[-1:])
        fits = isinstance(value, Tensor) and not is_spread(value) and value.shape == shape
        return layout.spread(value) if fits else value

    return dict(changed(dict(checkpoint), place))


def _shapes(checkpoint: Mapping[str, Any], model: nn.Module | None, optimizer: Optimizer | None) -> dict[Path, Any]:
    """The shapes of spread weights: by name, and by place in the state of the optimizer."""
    assert model is not None
    shapes: dict[Path, Any] = {(n,): p.shape for n, p in unwrapped(model).named_parameters() if is_spread(p)}
    saved = checkpoint.get(OPTIMIZER)
    if optimizer is None or not isinstance(saved, Mapping):
        return shapes
    numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
    weights = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, weight in zip(numbers, weights, strict=False):
        if is_spread(weight):
            shapes[OPTIMIZER, "state", str(number)] = weight.shape
    return shapes
