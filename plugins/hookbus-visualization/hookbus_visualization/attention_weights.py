"""Attention weights, layer by layer, wherever a model computes them.

`nn.MultiheadAttention` is asked for its weights; those of `scaled_dot_product_attention`, which gives none, are
computed from its queries and keys; any other module, such as the eager attention of Hugging Face models, is looked at
for weights among what it returns. Usable without a run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from hookbus.errors import HookError
from hookbus_visualization.probe import copied, modules_of, probing
from hookbus_visualization.unchanged import call

__all__ = ["attention_weights", "weights_of"]

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Those of `scaled_dot_product_attention` that may be given by position."""

ASK = "output_attentions"
"""The argument by which older Hugging Face models are asked for weights; newer ones return them unasked."""

EXACT = 0.01
"""So far from one may be what a row of weights in 16 bits sums to."""


def attention_weights(model: nn.Module, inputs: Any, *, heads: bool = True) -> dict[str, Tensor]:
    """The attention weights of every layer.

    The model makes one more forward pass, without gradients and as in a validation, and is left as it was.

    Args:
        model: the model.
        inputs: a batch, with which the model is called as the loop does. Weights take memory that grows with the
            square of the length: a few samples are enough.
        heads: whether to keep the heads apart; their mean is kept otherwise.

    Returns:
        By path of the layer, in the order of the pass, (N, heads, L, S) or (N, 1, L, S), float32, on the CPU. Each row
        over S sums to one; one that is masked entirely is zero. A layer that is used again gets a number: `layer (2)`.

    Raises:
        HookError: no attention can be seen in the model.
    """
    kept = _Kept(heads)
    with probing(model) as inner, _watched(inner, kept):
        call(inner, copied(inputs))
    if kept.weights:
        return kept.weights
    raise HookError(
        "No attention was seen in the model. Weights can be had from nn.MultiheadAttention, from "
        "torch.nn.functional.scaled_dot_product_attention, and from modules that return (output, weights), as those of "
        'Hugging Face do with attn_implementation="eager": use one of them, or leave attention out of content.'
    )


def weights_of(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `scaled_dot_product_attention` multiplies its values by: `softmax(q k^T * scale + mask)`.

    Args:
        query: of shape (..., L, E), usually (N, heads, L, E).
        key: (..., S, E).
        attn_mask, is_causal, scale, enable_gqa: as there.

    Returns:
        (..., L, S), float32; zeros in rows that are masked entirely.
    """
    query, key = query.detach().float(), key.detach().float()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        hides = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if hides else scores + attn_mask.float()
    return scores.softmax(-1).nan_to_num(0.0)


class _Kept:
    """The weights that were seen, by layer.

    Args:
        heads: whether to keep the heads apart.
    """

    def __init__(self, heads: bool) -> None:
        self.weights: dict[str, Tensor] = {}
        self._heads = heads
        self._running: list[tuple[str, int]] = []  # the path of each module that runs, and what was kept before it

    def enter(self, path: str) -> None:
        """A module begins to run."""
        self._running.append((path, len(self.weights)))

    def leave(self, output: Any) -> None:
        """A module is done, or has failed. Weights in its output are kept, unless they were seen inside it."""
        _, before = self._running[-1]
        if len(self.weights) == before and (weights := _weights_in(output)) is not None:
            self.add(weights)
        self._running.pop()

    def add(self, weights: Tensor) -> None:
        """Keep weights of the module that runs: (N, heads, L, S)."""
        weights = weights.detach().float().nan_to_num(0.0)
        if not self._heads:
            weights = weights.mean(1, keepdim=True)
        sums = weights.sum(-1, keepdim=True)  # not quite one where the model computes in 16 bits
        weights = weights / sums.where(sums > 0, 1.0)
        path, _ = self._running[-1]
        again = 1 + sum(name.partition(" (")[0] == path for name in self.weights)
        self.weights[path if again == 1 else f"{path} ({again})"] = weights.to("cpu", copy=True)


@contextmanager
def _watched(model: nn.Module, kept: _Kept) -> Iterator[None]:
    """Keep the weights of every attention in a model, for as long as the context lasts."""
    with ExitStack() as stack:
        for handle in _hooks(model, kept):
            stack.callback(handle.remove)
        stack.enter_context(_Recomputing(kept))
        yield


def _hooks(model: nn.Module, kept: _Kept) -> Iterator[Any]:
    """Hooks on every module, and more on those that can be asked for weights."""
    for path, module in modules_of(model).items():
        yield module.register_forward_pre_hook(lambda *_, path=path: kept.enter(path))
        if isinstance(module, nn.MultiheadAttention) and _takes(module, "average_attn_weights"):
            layer = _Multihead(kept)
            yield module.register_forward_pre_hook(layer.ask, with_kwargs=True)
            yield module.register_forward_hook(layer.keep)
        elif _can_be_asked(module):
            yield module.register_forward_pre_hook(_ask, with_kwargs=True)
        yield module.register_forward_hook(lambda *args: kept.leave(args[-1]), always_call=True)


def _weights_in(output: Any) -> Tensor | None:
    """Weights among what a module returned after its first output; rows that sum to one tell them."""
    parts = output[1:] if isinstance(output, tuple) else ()
    return next((each for each in parts if isinstance(each, Tensor) and _are_weights(each)), None)


def _are_weights(tensor: Tensor) -> bool:
    if tensor.ndim != 4 or not tensor.is_floating_point() or tensor.shape[-1] < 2:
        return False
    sums = tensor.float().sum(-1)
    is_row = ((sums - 1).abs() < EXACT) | (sums == 0)  # zero: one that is masked entirely
    return bool(is_row.all() & (tensor >= 0).all() & sums.any())


class _Multihead:
    """Asks an `nn.MultiheadAttention` for its weights, and gives its caller what that one has asked for."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._wanted = (False, False)

    def ask(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, changed."""
        given = inspect.signature(module.forward).bind(*args, **kwargs)
        given.apply_defaults()
        self._wanted = given.arguments["need_weights"], given.arguments["average_attn_weights"]
        given.arguments.update(need_weights=True, average_attn_weights=False)
        return given.args, given.kwargs

    def keep(self, _module: nn.Module, _args: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """The output, changed back. Weights are (N, heads, L, S), or (heads, L, S) without a batch."""
        attended, weights = output
        self._kept.add(weights if weights.ndim == 4 else weights[None])
        needed, averaged = self._wanted
        if not needed:
            return attended, None
        return attended, weights.mean(-3) if averaged else weights


def _can_be_asked(module: nn.Module) -> bool:
    """Whether it looks like an older Hugging Face model, with eager attention."""
    eager = getattr(getattr(module, "config", None), "_attn_implementation", None) == "eager"
    return eager and _takes(module, ASK)


def _takes(module: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(module.forward).parameters


def _ask(_module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return args, {**kwargs, ASK: True}


class _Recomputing(TorchFunctionMode):
    """Computes the weights of every `scaled_dot_product_attention`, which runs as it would."""

    def __init__(self, kept: _Kept) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
            needed = {name: value for name, value in given.items() if name not in ("value", "dropout_p")}
            self._kept.add(_with_heads(weights_of(**needed)))
        return func(*args, **kwargs)


def _with_heads(weights: Tensor) -> Tensor:
    """As (N, heads, L, S), whatever comes before (L, S); three dimensions are (N, L, S)."""
    if weights.ndim < 4:
        return weights.reshape(-1, 1, *weights.shape[-2:])
    return weights.flatten(0, -4)
