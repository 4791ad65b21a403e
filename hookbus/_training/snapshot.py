"""Copies of models, optimizers, schedulers and scalers, from which they are restored in place.

The copies of tensors are on the host, so that trial steps have the memory of the device that a training has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookbus.distributed.sharding import get_local
from hookbus.distributed.unwrap import unwrap_optimizer
from hookbus.errors import LoopError

Restore = Callable[[], Any]
"""Function that restores a value in place and returns it."""


def capture_training(
    modules: Iterable[nn.Module], optimizers: Iterable[Any], schedulers: Iterable[Any], scaler: Any
) -> list[Restore]:
    """Copy the state of a training. The gradients are removed, as before the first backward pass.

    Raises:
        LoopError: If a parameter is not initialized yet.
    """
    parts = [part for module in modules for part in module.modules()]
    inner = [unwrap_optimizer(optimizer) for optimizer in optimizers]
    parameters = _find_parameters(parts, inner)
    _check_initialized([*parameters, *chain.from_iterable(part.buffers(recurse=False) for part in parts)])
    restores = [
        *chain.from_iterable(map(_capture_module, parts)),
        *map(_capture_parameter, parameters),
        *chain.from_iterable(map(_capture_optimizer, inner)),
        # After the optimizers: some schedulers write into the parameter groups.
        *map(_capture_states, schedulers),
        *map(_capture_groups, inner),
        *(() if scaler is None else _capture_scaler(scaler)),
    ]
    for parameter in parameters:
        parameter.grad = None
    return restores


def _find_parameters(parts: Iterable[nn.Module], optimizers: Iterable[Any]) -> list[Tensor]:
    """Return the parameters of modules and of optimizers, each once."""
    of_modules = chain.from_iterable(part.parameters(recurse=False) for part in parts)
    groups = chain.from_iterable(getattr(optimizer, "param_groups", ()) for optimizer in optimizers)
    of_optimizers = chain.from_iterable(group["params"] for group in groups)
    return list({id(p): p for p in chain(of_modules, of_optimizers)}.values())


def _check_initialized(tensors: Iterable[Tensor]) -> None:
    """Raise if a parameter or buffer has no shape before the first forward pass.

    Raises:
        LoopError: If one has none.
    """
    count = sum(map(is_lazy, tensors))
    if count:
        raise LoopError(
            "run.sandbox: the first forward pass of the model initializes parameters or buffers, got "
            f"{count} uninitialized ones. Pass one batch through the model before the training."
        )


# -- parts ---------------------------------------------------------------------------------------


def _capture_module(part: nn.Module) -> Iterator[Restore]:
    """Yield functions that restore the mode, the buffers and the extra state of a module without its children."""
    yield partial(setattr, part, "training", part.training)
    yield _capture(part._buffers)
    if type(part).get_extra_state is not nn.Module.get_extra_state:
        yield partial(part.set_extra_state, copy.deepcopy(part.get_extra_state()))


def _capture_parameter(parameter: Tensor) -> Restore:
    """Return a function that restores a parameter and its gradient."""
    restore, restore_grad, requires_grad = _capture(parameter), _capture(parameter.grad), parameter.requires_grad

    def restore_parameter() -> None:
        restore()
        parameter.requires_grad_(requires_grad)
        parameter.grad = restore_grad()

    return restore_parameter


def _capture_optimizer(optimizer: Any) -> Iterator[Restore]:
    """Yield functions that restore the state of an optimizer, without its parameter groups."""
    if not hasattr(optimizer, "param_groups"):
        yield _capture_states(optimizer)
        return
    yield _capture(optimizer.state)
    # Flags such as `_opt_called`: schedulers warn if the optimizer has not stepped before them.
    flags = {name: value for name, value in vars(optimizer).items() if isinstance(value, (bool, int, float, str))}
    yield partial(vars(optimizer).update, flags)


def _capture_groups(optimizer: Any) -> Restore:
    """Return a function that restores the parameter groups of an optimizer."""
    groups = list(getattr(optimizer, "param_groups", ()))
    settings = [_capture({key: value for key, value in group.items() if key != "params"}) for group in groups]
    parameters = [list(group["params"]) for group in groups]

    def restore_groups() -> None:
        for group, restore, members in zip(groups, settings, parameters, strict=True):
            group["params"][:] = members
            values = {"params": group["params"], **restore()}
            group.clear()
            group.update(values)
        if groups:
            optimizer.param_groups[:] = groups

    return restore_groups


def _capture_states(component: Any) -> Restore:
    """Return a function that restores a component by its `load_state_dict`."""
    state = copy.deepcopy(component.state_dict())
    return lambda: component.load_state_dict(copy.deepcopy(state))


def _capture_scaler(scaler: Any) -> Iterator[Restore]:
    """Yield functions that restore a gradient scaler, also if a trial ends within an optimizer step."""
    if scaler.state_dict():  # empty for a scaler that is disabled
        yield _capture_states(scaler)
    yield _capture(getattr(scaler, "_per_optimizer_states", {}))


# -- values --------------------------------------------------------------------------------------


def _capture(value: Any) -> Restore:
    """Return a function that restores a value: the same tensor, list or dict with its present content."""
    if isinstance(value, Tensor):
        return _capture_tensor(value)
    if isinstance(value, dict):
        return partial(_restore_items, value, {key: _capture(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return partial(_restore_items, value, [_capture(item) for item in value])
    copied = copy.deepcopy(value)
    return lambda: copied


def _capture_tensor(tensor: Tensor) -> Restore:
    copied = get_local(tensor).to("cpu", copy=True)

    def restore() -> Tensor:
        get_local(tensor).copy_(copied)
        return tensor

    return restore


def _restore_items(target: Any, items: Any) -> Any:
    """Restore the items of a dict, a list or a tuple in place, and return it."""
    if isinstance(target, dict):
        values = {key: restore() for key, restore in items.items()}
        target.clear()
        target.update(values)
    elif isinstance(target, list):
        target[:] = [restore() for restore in items]
    else:
        for restore in items:
            restore()
    return target
