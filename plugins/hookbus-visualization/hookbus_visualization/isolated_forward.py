"""Isolated forward passes of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookbus.distributed import named_modules
from hookbus_visualization.preserve_model import preserve_state

__all__ = ["copy_tensors", "get_modules", "isolated_forward"]


@contextmanager
def isolated_forward(model: nn.Module, *, gradients: bool = False) -> Iterator[nn.Module]:
    """Context manager for forward passes that do not modify the model, with or without gradients.

    The gradient mode inside the context is independent of the caller: the context may be entered under `torch.no_grad`
    and `torch.inference_mode`. An active `torch.autocast` stays active.

    Args:
        model: The model, wrapped or not.
        gradients: Whether to enable gradients.

    Yields:
        The model without its wrappers.
    """
    with (
        preserve_state(model) as inner,
        # Tensors that are created in inference mode cannot be used by autograd.
        torch.inference_mode(False),
        torch.set_grad_enabled(gradients),
        _disable_fast_path(),
    ):
        yield inner


@contextmanager
def _disable_fast_path() -> Iterator[None]:
    """Disable the fast path of nn.TransformerEncoder inside the context."""
    # The fast path passes nested tensors between layers, which layers with hooks cannot process.
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def get_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model by path; the model has the path "", wrapped modules are unwrapped."""
    return dict(named_modules(model))


def copy_tensors(value: Any, copy: Callable[[Tensor], Tensor] = Tensor.clone) -> Any:
    """Copy all tensors of a nested value, because some models modify their inputs in place.

    Args:
        value: A tensor, or nested mappings, lists and tuples with tensors. Other values are returned unchanged.
        copy: Function that copies a tensor.

    Returns:
        The value with copied tensors. Mappings become dicts.
    """
    if isinstance(value, Tensor):
        return copy(value)
    if isinstance(value, Mapping):
        return {key: copy_tensors(item, copy) for key, item in value.items()}
    # Subclasses such as named tuples have other constructors.
    return type(value)([copy_tensors(item, copy) for item in value]) if type(value) in (tuple, list) else value
