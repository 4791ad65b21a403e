"""A forward pass of our own, in whatever context it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_visualization.unchanged import unchanged

__all__ = ["copied", "modules_of", "probing"]

COMPILED = re.compile(r"(^|\.)_orig_mod(?=\.|$)")
"""What the wrapper of a compiled module adds to its path."""


@contextmanager
def probing(model: nn.Module, *, gradients: bool = False) -> Iterator[nn.Module]:
    """A model that is left unchanged, to be called with or without gradients, whatever holds outside.

    It may be used inside of `torch.no_grad`, `torch.inference_mode` and `torch.autocast`, which stays on.

    Args:
        model: wrapped or not.
        gradients: whether there are gradients to be computed.

    Yields:
        The module inside its wrappers.
    """
    with (
        unchanged(model) as inner,
        torch.inference_mode(False),
        torch.set_grad_enabled(gradients),
        _no_fast_path(),
    ):
        yield inner


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Transformers go step by step: their fast path makes nested tensors, which no layer with hooks can take."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model by path, the model itself under ""; of compiled ones, what is inside the wrapper."""
    return {COMPILED.sub("", path).strip("."): module for path, module in model.named_modules()}


def copied(value: Any, copy: Callable[[Tensor], Tensor] = Tensor.clone) -> Any:
    """Inputs again with a copy of each tensor in them, since some models change what they are called with.

    Args:
        value: a tensor, or mappings, lists and tuples with tensors in them; anything else stays as it is.
        copy: makes the copy of one tensor.
    """
    if isinstance(value, Tensor):
        return copy(value)
    if isinstance(value, Mapping):
        return {key: copied(each, copy) for key, each in value.items()}
    return type(value)([copied(each, copy) for each in value]) if type(value) in (tuple, list) else value
