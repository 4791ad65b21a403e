"""Isolated forward passes: the state of a model is preserved while it is inspected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hookbus._training.evaluation import preserve_training_modes
from hookbus.data.rng import isolate_rng
from hookbus.distributed.unwrap import unwrap_model


@contextmanager
def isolated_forward(model: nn.Module, *, gradients: bool = False) -> Iterator[nn.Module]:
    """Context manager for forward passes that do not modify the model, with or without gradients.

    Inside the context the model is in evaluation mode, its parameters have no gradients, and compiled modules run
    eagerly, so that module hooks are called. On exit, also after an exception, the training mode of each module, the
    buffers, the gradients, the RNG states and the module hooks are restored bit for bit.

    The gradient mode inside the context is independent of the caller: the context may be entered under `torch.no_grad`
    and `torch.inference_mode`. An active `torch.autocast` stays active.

    Args:
        model: The model, wrapped or not.
        gradients: Whether to enable gradients.

    Yields:
        The model without its wrappers, such as `torch.compile` and DDP, so that no other rank is involved.
    """
    inner = unwrap_model(model)
    with isolate_rng(), preserve_training_modes(inner), _force_eager(), ExitStack() as stack:
        for parameter in inner.parameters():
            stack.callback(setattr, parameter, "grad", parameter.grad)
            # Without gradients, a backward pass inside the context allocates new ones instead of accumulating.
            parameter.grad = None
        for module in inner.modules():
            # `_buffers` instead of `named_buffers`, which skips buffers that are None.
            for name, buffer in module._buffers.items():
                copy = None if buffer is None else buffer.detach().clone()
                stack.callback(_restore_buffer, module, name, buffer, copy)
            for table in _get_hook_tables(module):
                stack.callback(_remove_new_keys, table, set(table))
            # Not `eval()`, which models may override: low-rank adapters merge their weights into the base weights.
            module.training = False
        # Tensors that are created in inference mode cannot be used by autograd.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(gradients))
        # Before torch 2.13, autocast also caches casts of parameters that are made without gradients; the next forward
        # pass of the caller would use them.
        stack.callback(torch.clear_autocast_cache)
        # The fast path of nn.TransformerEncoder passes nested tensors between layers, which layers with hooks cannot
        # process.
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield inner


def copy_tensors(value: Any, copy: Callable[[Tensor], Tensor] = Tensor.clone) -> Any:
    """Copy all tensors of a nested value, because some models modify their inputs in place.

    Mappings become dicts. Values other than tensors, mappings, lists and tuples are returned unchanged.

    Args:
        value: A tensor, or a nested value that contains tensors.
        copy: Function that copies a tensor. Default: `Tensor.clone`.
    """
    if isinstance(value, Tensor):
        return copy(value)
    if isinstance(value, Mapping):
        return {key: copy_tensors(item, copy) for key, item in value.items()}
    # Subclasses such as named tuples have other constructors.
    return type(value)([copy_tensors(item, copy) for item in value]) if type(value) in (tuple, list) else value


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a model as in the training loop: a dict contains keyword arguments, a tuple positional arguments.

    Args:
        model: The model.
        inputs: Its inputs; any other value is the only argument.
    """
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _force_eager() -> AbstractContextManager[Any]:
    """Return a context in which compiled code is not used and nothing is compiled."""
    # If the compiler is not loaded, nothing is compiled; `set_stance` would import it, which takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@torch.no_grad()
def _restore_buffer(module: nn.Module, name: str, buffer: Tensor | None, copy: Tensor | None) -> None:
    # Both the content and the object are restored: other code may keep a reference to the buffer.
    if buffer is not None and copy is not None:
        buffer.copy_(copy)
    setattr(module, name, buffer)


def _remove_new_keys(table: dict[Any, Any], known: set[Any]) -> None:
    for key in set(table) - known:
        del table[key]


def _get_hook_tables(module: nn.Module) -> list[dict[Any, Any]]:
    # By name: torch.nn.Module stores each type of hook, and its options, in a private dict `_*_hooks*`.
    return [value for name, value in vars(module).items() if "_hooks" in name and isinstance(value, dict)]
