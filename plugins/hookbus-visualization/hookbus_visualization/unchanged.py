"""Looking into a model so that nothing of it is seen afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hookbus.model.wrappers import unwrapped
from hookbus.training.evaluation import preserved_modes
from hookbus.training.rng import preserved_rng

__all__ = ["call", "unchanged"]


@contextmanager
def unchanged(model: nn.Module) -> Iterator[nn.Module]:
    """A model to be called as often as one likes, which afterwards is as it was.

    Inside, it is in evaluation mode, without gradients in its parameters, and what is compiled runs as it was written,
    so that hooks of modules are called. Afterwards the mode of each module, buffers, gradients, random streams and the
    tables of hooks are as before, bit for bit, whatever happened.

    Args:
        model: wrapped or not.

    Yields:
        The module inside its wrappers, such as `torch.compile` and DDP: other processes do not take part.
    """
    inner = unwrapped(model)
    with preserved_rng(), ExitStack() as stack:
        for kept in (_hooks_of, _buffers_of, _gradients_of, preserved_modes):
            stack.enter_context(kept(inner))
        stack.enter_context(_as_written())
        for module in inner.modules():
            module.training = False  # not eval(), at which some modules merge their weights
        yield inner


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a model as the training does: with the items of a mapping, the parts of a tuple, or the value itself."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _as_written() -> AbstractContextManager[Any]:
    """Nothing compiled is used, nothing is compiled anew; the compiler is not loaded for it."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def _gradients_of(model: nn.Module) -> Iterator[None]:
    """Gradients laid aside, so that what is added inside is not added to them; nothing is copied."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def _buffers_of(model: nn.Module) -> Iterator[None]:
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for module, name, buffer, copy in buffers:
            _put_back(module, name, buffer, copy)


@torch.no_grad()
def _put_back(module: nn.Module, name: str, buffer: Tensor | None, copy: Tensor | None) -> None:
    if buffer is not None and copy is not None:
        buffer.copy_(copy)
    setattr(module, name, buffer)


@contextmanager
def _hooks_of(model: nn.Module) -> Iterator[None]:
    """Hooks that were put into modules inside are taken out; those that were there stay."""
    tables = [table for module in model.modules() for table in _tables(module)]
    before = [set(table) for table in tables]
    try:
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            for key in set(table) - kept:
                del table[key]


def _tables(module: nn.Module) -> list[dict[Any, Any]]:
    return [value for name, value in vars(module).items() if "_hooks" in name and isinstance(value, dict)]
