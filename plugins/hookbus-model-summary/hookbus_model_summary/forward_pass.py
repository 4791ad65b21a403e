"""Shapes and FLOPs of the modules in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookbus.metrics import FlopCounter

Shape = tuple[int, ...]


@dataclass(slots=True)
class ModuleCalls:
    """Calls of a module in one forward pass.

    Attributes:
        inputs: Shapes of the tensors in the arguments of the first call.
        outputs: Shapes of the tensors in the return value of the first call.
        flops: Floating-point operations of all calls, those of submodules included.
    """

    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    flops: int = 0
    _entered: list[int] = field(default_factory=list)


def record_forward(model: nn.Module, forward: Callable[[], object]) -> Mapping[str, ModuleCalls]:
    """Execute a forward pass, and return the calls of each module by its name; "" is the model.

    FLOPs are counted by `torch.utils.flop_counter`: a multiplication and an addition are two operations, and operations
    other than matrix products, convolutions and attention are not counted.

    Args:
        model: The model, without wrappers.
        forward: Function that calls it. Modules that are not called are omitted.

    Raises:
        Exception: If the function raises it. The hooks of the modules are removed.
    """
    calls: dict[str, ModuleCalls] = {}
    with ExitStack() as stack:
        counter = FlopCounter()
        stack.callback(counter.stop)
        for name, module in model.named_modules():
            before, after = partial(_begin_call, calls, counter, name), partial(_end_call, calls, counter, name)
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after).remove)
        forward()
    return calls


def _begin_call(
    calls: dict[str, ModuleCalls],
    counter: FlopCounter,
    name: str,
    _module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if name not in calls:
        calls[name] = ModuleCalls(inputs=tuple(_iter_shapes((args, kwargs))))
    calls[name]._entered.append(counter.total)


def _end_call(
    calls: dict[str, ModuleCalls], counter: FlopCounter, name: str, _module: nn.Module, _args: Any, output: Any
) -> None:
    call = calls[name]
    flops = counter.total - call._entered.pop()
    # A recursive call is part of the outer one.
    if not call._entered:
        call.flops += flops
    call.outputs = call.outputs or tuple(_iter_shapes(output))


def _iter_shapes(value: Any) -> Iterator[Shape]:
    """Yield the shapes of the tensors in a nested value."""
    if isinstance(value, Tensor):
        yield tuple(value.shape)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iter_shapes(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iter_shapes(item)
