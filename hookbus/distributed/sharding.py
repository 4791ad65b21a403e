"""Sharding of tensors across ranks (device mesh and placements)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookbus._utils.arguments import get_by_name
from hookbus.distributed.unwrap import named_parameters, strip_wrappers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement
    from torch.optim import Optimizer

OPTIMIZER = "optimizer"
TRAINING_WEIGHTS = "training_weights"
"""Key of an optimizer state in a checkpoint: the weights of training mode of an optimizer with modes, by index."""
Path = tuple[str, ...]
LeafFunction = Callable[[Path, Any], Any]
"""Function of the path of a leaf, key by key, and the leaf; returns the new leaf."""


def is_sharded(value: object) -> bool:
    """Return whether a value is a sharded tensor (DTensor)."""
    module = sys.modules.get("torch.distributed.tensor")  # slow to import; not imported means no DTensor exists
    return module is not None and isinstance(value, module.DTensor)


def has_sharded_tensors(value: Any) -> bool:
    """Return whether a checkpoint, or a part of one, contains a sharded tensor.

    Args:
        value: Nested mappings, lists and tuples.
    """
    if isinstance(value, (dict, list, tuple)):
        return any(map(has_sharded_tensors, value.values() if isinstance(value, dict) else value))
    return is_sharded(value)


def get_local(tensor: Tensor) -> Tensor:
    """Return the values of a tensor that this rank has, without autograd."""
    local: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return local.detach()


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """Sharding of tensors.

    Attributes:
        mesh: Device mesh.
        placements: Placement per dimension of the mesh: sharded or replicated.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]

    def empty(self, like: Tensor) -> DTensor:
        """Return an uninitialized sharded tensor of the shape and dtype of a tensor."""
        from torch.distributed.tensor import empty

        return empty(*like.shape, dtype=like.dtype, device_mesh=self.mesh, placements=self.placements)

    def distribute(self, full: Tensor) -> DTensor:
        """Return the sharded tensor of a full tensor, which is equal on every rank. No communication."""
        from torch.distributed.tensor import DTensor, Replicate

        on_device = full.detach().to(self.mesh.device_type)
        # Shards of a replicated tensor are slices; `distribute_tensor` would scatter the tensor of rank 0 by default.
        replicated = DTensor.from_local(on_device, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        return replicated.redistribute(placements=self.placements)


def sharding_of(model: nn.Module | None) -> ShardingSpec | None:
    """Return the sharding of the parameters of a model; None if they are not sharded.

    Args:
        model: Model, wrapped or not; None for no model.
    """
    parameters = [] if model is None else strip_wrappers(model).parameters()
    # FSDP2 shards all parameters of a model in the same way.
    sharded = next((parameter for parameter in parameters if is_sharded(parameter)), None)
    return None if sharded is None else ShardingSpec(sharded.device_mesh, tuple(sharded.placements))  # type: ignore[attr-defined]


def tree_map_with_path(value: Any, function: LeafFunction, path: Path = ()) -> Any:
    """Return a checkpoint, or a part of one, with its leaves replaced.

    Args:
        value: Nested dicts, lists and tuples, which are copied.
        function: Function that is called for every other value.
        path: Path of the part within the checkpoint.
    """
    if isinstance(value, dict):
        copy = type(value)()  # keeps the type, such as OrderedDict
        copy.update({key: tree_map_with_path(item, function, (*path, str(key))) for key, item in value.items()})
        return copy
    if isinstance(value, (list, tuple)):
        return type(value)([tree_map_with_path(item, function, (*path, str(i))) for i, item in enumerate(value)])
    return function(path, value)


def to_full_tensors(value: Any) -> Any:
    """Return a checkpoint, or a part of one, with full tensors. A collective call if it contains sharded tensors.

    Args:
        value: Nested mappings, lists and tuples; not modified.
    """
    if not has_sharded_tensors(value):
        return value
    return tree_map_with_path(value, lambda _, leaf: leaf.full_tensor() if is_sharded(leaf) else leaf)


def shard_like(
    checkpoint: Mapping[str, Any], model: nn.Module | None, optimizer: Optimizer | Mapping[str, Optimizer] | None
) -> dict[str, Any]:
    """Return a checkpoint whose tensors are sharded like those of a run, so that they can be copied into them.

    A tensor with the name and the shape of a sharded parameter is sharded like the parameter, including tensors in
    averages and hook states. Optimizer state of the shape of its parameter is sharded likewise. No communication.

    Args:
        checkpoint: Checkpoint, or a bare state dict.
        model: Model of the run; if it is not sharded, the checkpoint is returned unchanged.
        optimizer: Optimizer of the run, or optimizers by name.
    """
    sharding = sharding_of(model)
    if sharding is None:
        return dict(checkpoint)
    shapes = _get_sharded_shapes(checkpoint, model, optimizer)

    def place(path: Path, value: Any) -> Any:
        # The optimizer state is keyed by the index of a parameter, everything else by its name.
        prefixes = (path[:3], path[:4]) if path[0] == OPTIMIZER else (path[-1:],)
        shape = next((shapes[prefix] for prefix in prefixes if prefix in shapes), None)
        fits = isinstance(value, Tensor) and not is_sharded(value) and value.shape == shape
        return sharding.distribute(value) if fits else value

    return dict(tree_map_with_path(dict(checkpoint), place))


def _get_sharded_shapes(checkpoint: Mapping[str, Any], model: nn.Module | None, optimizer: Any) -> dict[Path, Any]:
    """Return the shapes of sharded parameters, by name and by path in the optimizer state."""
    assert model is not None
    shapes: dict[Path, Any] = {(n,): p.shape for n, p in named_parameters(model) if is_sharded(p)}
    saved = checkpoint.get(OPTIMIZER) or {}
    for name, part in get_by_name(optimizer).items():
        path, own = ((OPTIMIZER, name), saved.get(name)) if name else ((OPTIMIZER,), saved)
        shapes |= _get_state_shapes(path, own, part)
    return shapes


def _get_state_shapes(path: Path, saved: Any, optimizer: Optimizer) -> dict[Path, Any]:
    """Return the shapes of the sharded parameters of one optimizer, by path in its state."""
    if not saved or not isinstance(saved, Mapping):
        return {}
    numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
    weights = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return {
        (*path, part, str(number)): weight.shape
        for number, weight in zip(numbers, weights, strict=False)
        if is_sharded(weight)
        for part in ("state", TRAINING_WEIGHTS)
    }
