"""Checks of the states of optimizers, schedulers, scaler, loss and gradients against a run, before they are loaded.

torch assigns most of these states without a check, so that an invalid value would raise an exception in a later step,
or change the training silently. The classes of torch are checked; other classes check their own state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from torch import Tensor, optim
from torch.nn.parameter import is_lazy

from hookbus._utils import schema

ELEMENTWISE = frozenset(
    {
        optim.ASGD,
        optim.Adadelta,
        optim.Adagrad,
        optim.Adam,
        optim.AdamW,
        optim.Adamax,
        optim.NAdam,
        optim.RAdam,
        optim.RMSprop,
        optim.Rprop,
        optim.SGD,
    }
)
"""Optimizers whose state of a parameter consists of numbers and of tensors of its shape."""

NUMBERS = frozenset({"step", "eta", "mu", "mu_product"})
"""Keys of the state of these optimizers that are numbers, or tensors with one element."""

_groups = schema.list_of(schema.record({"params": schema.list_of(schema.integer())}))
check_optimizer_structure = schema.record(
    {"state": schema.mapping_of(schema.any_value, schema.any_value), "param_groups": _groups}
)
"""Check that the state of an optimizer of torch consists of groups of indices, and states by index."""


def check_optimizer(optimizer: Any, state: Mapping[str, Any], key: str) -> None:
    """Raise if an optimizer cannot use the values of a state with as many parameters. Other classes are not checked.

    Raises:
        InvalidDataError: If a value is invalid.
    """
    if type(optimizer) not in ELEMENTWISE:
        return
    groups, own_groups = state["param_groups"], optimizer.param_groups
    for i, (group, own_group) in enumerate(zip(groups, own_groups, strict=True)):
        # None lets torch decide.
        ignored = {"params", *(name for name in ("foreach", "fused") if group.get(name) is None)}
        template = {name: False if value is None else value for name, value in own_group.items() if name not in ignored}
        check_template(template, group, f"{key}.param_groups[{i}]")
    _check_elementwise(groups, own_groups, state["state"], schema.join(key, "state"))


def _check_elementwise(groups: Any, own: Any, states: Mapping[Any, Any], key: str) -> None:
    """Raise unless each state belongs to a parameter, and its tensors have the shape of that parameter."""
    indices = list(chain.from_iterable(group["params"] for group in groups))
    parameters = dict(zip(indices, chain.from_iterable(group["params"] for group in own), strict=True))
    names: set[str] | None = None
    for index, state in states.items():
        if index not in parameters:
            raise schema.InvalidDataError(key, "indices of parameters", schema.shorten(index))
        schema.mapping_of(schema.any_value)(state, schema.join(key, index))
        for name, value in state.items():
            _check_value(name, value, parameters[index], schema.join(schema.join(key, index), name))
        names = set(state) if names is None else names
        if set(state) != names:
            expected, got = (", ".join(sorted(keys)) or "none" for keys in (names, state))
            raise schema.InvalidDataError(schema.join(key, index), f"the keys {expected}", got)


def _check_value(name: str, value: Any, parameter: Tensor, key: str) -> None:
    if name in NUMBERS:
        single = _to_number(value)
        if isinstance(single, bool) or not isinstance(single, (int, float)) or not 0 <= single <= schema.MAX_COUNT:
            raise schema.InvalidDataError(key, f"a number from 0 to {schema.MAX_COUNT}", schema.shorten(single))
        return
    if value is None and name == "momentum_buffer":
        return
    schema.tensor()(value, key)
    if not _has_shape_of(parameter, value):
        raise schema.InvalidDataError(key, f"a tensor of shape {tuple(parameter.shape)}", schema.shorten(value))


def check_template(own: Any, value: Any, key: str) -> None:
    """Raise if a value of a checkpoint is not of the same type and range as the value that a run has now.

    Args:
        own: Value of the run, such as the state of a new scheduler; None accepts every value.
        value: Value of the checkpoint.
        key: Key of the value.

    Raises:
        InvalidDataError: If a value is invalid.
    """
    if isinstance(own, Mapping):
        schema.mapping_of(schema.any_value, schema.any_value)(value, key)
        for name in own.keys() & value.keys():
            check_template(own[name], value[name], schema.join(key, name))
    elif isinstance(own, (list, tuple)):
        length = len(own) if isinstance(own, tuple) else None
        schema.list_of(schema.any_value, len(own) if length else min(len(own), 1), length or schema.MAX_COUNT)(
            value, key
        )
        for i, item in enumerate(value):
            check_template(own[min(i, len(own) - 1)] if own else None, item, f"{key}[{i}]")
    elif isinstance(own, bool):
        if not isinstance(value, bool):
            raise schema.InvalidDataError(key, "true or false", schema.shorten(value))
    elif isinstance(own, (int, float, Tensor)):
        _check_number(own, value, key)
    elif isinstance(own, str) and not isinstance(value, str):
        raise schema.InvalidDataError(key, "a string", schema.shorten(value))


def _check_number(own: float | Tensor, value: Any, key: str) -> None:
    """Raise unless a value is a number, or a tensor with one element, that is not negative unless the own one is."""
    own, value = _to_number(own), _to_number(value)
    if isinstance(own, Tensor) and isinstance(value, Tensor):
        return
    if isinstance(own, Tensor):
        raise schema.InvalidDataError(key, "a tensor", schema.shorten(value))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= math.inf
    has_sign = own < 0 or math.isinf(own)
    if not is_number or (isinstance(value, int) and abs(value) > schema.MAX_COUNT) or (value < 0 and not has_sign):
        raise schema.InvalidDataError(key, "a number" if has_sign else "a number >= 0", schema.shorten(value))


def _to_number(value: Any) -> Any:
    """Return the value of a tensor with one element; any other value is returned unchanged."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 and value.device.type != "meta" else value


def _has_shape_of(parameter: Tensor, value: Tensor) -> bool:
    """Return whether a tensor has the shape of a parameter."""
    # A parameter that the first forward pass initializes has no shape before the weights are loaded.
    return is_lazy(parameter) or value.shape == parameter.shape


def check_grads(parameters: Mapping[str, Tensor], grads: Mapping[str, Any]) -> None:
    """Raise if a gradient has another shape than its parameter.

    Raises:
        InvalidDataError: If a gradient is not a tensor of the shape.
    """
    for name, grad in grads.items():
        schema.tensor()(grad, schema.join("grads", name))
        if name in parameters and not _has_shape_of(parameters[name], grad):
            raise schema.InvalidDataError(
                schema.join("grads", name), f"a tensor of shape {tuple(parameters[name].shape)}", schema.shorten(grad)
            )
