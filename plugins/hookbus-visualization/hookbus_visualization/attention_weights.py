"""Capture of the attention weights of a model. Requires no run.

`multi_head_attention_forward`, which `nn.MultiheadAttention` calls, is called with `need_weights=True`. The weights of
`scaled_dot_product_attention`, which returns none, are recomputed from its queries and keys. The outputs of all other
modules, such as the eager attention of Hugging Face models, are searched for attention weights.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from hookbus.distributed import named_modules
from hookbus.errors import HookError
from hookbus.evaluation import call_model, copy_tensors, isolated_forward

POSITIONAL_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Positional arguments of `scaled_dot_product_attention`."""

MULTI_HEAD_SIGNATURE = inspect.signature(multi_head_attention_forward)

OUTPUT_ATTENTIONS = "output_attentions"
"""Argument that requests weights from older Hugging Face models; newer models always return them."""

ROW_SUM_TOLERANCE = 0.01
"""Tolerance of the row sums of weights, which deviate from one in 16-bit precision."""


def capture_attention_weights(model: nn.Module, inputs: Any, *, heads: bool = True) -> dict[str, Tensor]:
    """Compute the attention weights of every layer.

    Runs one forward pass in evaluation mode, without gradients. The model is not modified.

    Args:
        model: The model.
        inputs: A batch, passed to the model as in the training loop. The memory of the weights grows with the square of
            the sequence length, so pass only a few samples.
        heads: Whether to return the weights of each head. Otherwise the heads are averaged.

    Returns:
        The weights, (N, heads, L, S) or (N, 1, L, S), float32, on the CPU, by path, in the order of the calls. Each row
        over S sums to one; a fully masked row is zero. A repeated call of a layer has a number: `layer (2)`.

    Raises:
        HookError: If the model contains no supported attention.
    """
    recorder = _WeightRecorder(heads)
    # The first context removes the hooks on exit.
    with isolated_forward(model) as inner, recorder:
        _register_hooks(inner, recorder)
        call_model(inner, copy_tensors(inputs))
    if recorder.weights:
        return recorder.weights
    raise HookError(
        "the model contains no supported attention. Use nn.MultiheadAttention, "
        "torch.nn.functional.scaled_dot_product_attention, or modules that return (output, weights), such as Hugging "
        'Face models with attn_implementation="eager", or remove attention from `content`.'
    )


def compute_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute the weights of `scaled_dot_product_attention`: `softmax(q k^T * scale + mask)`.

    Args:
        query: Queries, (..., L, E), usually (N, heads, L, E).
        key: Keys, (..., S, E).
        attn_mask: Mask, as in `scaled_dot_product_attention`.
        is_causal: Whether to apply a causal mask.
        scale: Factor of the scores. Default: 1 / sqrt(E).
        enable_gqa: Whether to enable grouped-query attention.

    Returns:
        The weights, (..., L, S), float32. Fully masked rows are zero.
    """
    query, key = query.detach().float(), key.detach().float()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        is_boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if is_boolean else scores + attn_mask.float()
    # softmax of a fully masked row is NaN.
    return scores.softmax(-1).nan_to_num(0.0)


class _WeightRecorder(TorchFunctionMode):
    """Recorder of attention weights by layer; the results of all functions are unchanged inside the mode.

    Args:
        heads: Whether to keep the weights of each head.
    """

    def __init__(self, heads: bool) -> None:
        super().__init__()
        self.weights: dict[str, Tensor] = {}
        self._heads = heads
        # The stack of active modules: the path, and the number of weights captured before the module was called.
        self._call_stack: list[tuple[str, int]] = []

    def enter(self, path: str) -> None:
        """Push a module before its forward method is called."""
        self._call_stack.append((path, len(self.weights)))

    def leave(self, output: Any) -> None:
        """Pop a module after its forward method returned or raised, and capture weights in its output."""
        _, before = self._call_stack[-1]
        # Parent modules often return the weights of their children: only the innermost module is recorded.
        if len(self.weights) == before and (weights := _find_weights(output)) is not None:
            self.add(weights)
        self._call_stack.pop()

    def add(self, weights: Tensor) -> None:
        """Add weights of the innermost active module, (N, heads, L, S)."""
        weights = weights.detach().float().nan_to_num(0.0)
        if not self._heads:
            weights = weights.mean(1, keepdim=True)
        # The row sums of weights that were computed in 16-bit precision are not exactly one.
        sums = weights.sum(-1, keepdim=True)
        weights = weights / sums.where(sums > 0, 1.0)
        path, _ = self._call_stack[-1]
        calls = 1 + sum(name.partition(" (")[0] == path for name in self.weights)
        self.weights[path if calls == 1 else f"{path} ({calls})"] = weights.to("cpu", copy=True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the weights of the calls of both attention functions of torch."""
        kwargs = kwargs or {}
        if func is multi_head_attention_forward:
            return self._call_multi_head_attention(*args, **kwargs)
        if func is scaled_dot_product_attention:
            arguments = {**dict(zip(POSITIONAL_ARGUMENTS, args, strict=False)), **kwargs}
            # Dropout is not applied in evaluation, and values do not affect the weights.
            relevant = {name: value for name, value in arguments.items() if name not in ("value", "dropout_p")}
            self.add(_to_heads(compute_weights(**relevant)))
        return func(*args, **kwargs)

    def _call_multi_head_attention(self, *args: Any, **kwargs: Any) -> tuple[Any, Tensor | None]:
        """Record the weights, (N, heads, L, S) or (heads, L, S), and return what the caller requested."""
        bound = MULTI_HEAD_SIGNATURE.bind(*args, **kwargs)
        bound.apply_defaults()
        needed, averaged = bound.arguments["need_weights"], bound.arguments["average_attn_weights"]
        bound.arguments.update(need_weights=True, average_attn_weights=False)
        outputs: Any = multi_head_attention_forward(*bound.args, **bound.kwargs)
        attended, weights = outputs
        self.add(weights if weights.ndim == 4 else weights[None])
        if not needed:
            return attended, None
        return attended, weights.mean(-3) if averaged else weights


def _register_hooks(model: nn.Module, recorder: _WeightRecorder) -> None:
    for path, module in named_modules(model):
        module.register_forward_pre_hook(lambda *_, path=path: recorder.enter(path))
        if _supports_output_attentions(module):
            module.register_forward_pre_hook(_request_attentions, with_kwargs=True)
        # always_call: the stack must stay consistent if a model catches the exception of one of its modules.
        module.register_forward_hook(lambda *args: recorder.leave(args[-1]), always_call=True)


def _find_weights(output: Any) -> Tensor | None:
    """Return the attention weights among the outputs of a module after the first one, or None."""
    items = output[1:] if isinstance(output, tuple) else ()
    return next((item for item in items if isinstance(item, Tensor) and _is_weights(item)), None)


def _is_weights(tensor: Tensor) -> bool:
    # Modules do not name their outputs: non-negative rows that sum to one are taken as attention weights.
    if tensor.ndim != 4 or not tensor.is_floating_point() or tensor.shape[-1] < 2:
        return False
    sums = tensor.float().sum(-1)
    is_row = ((sums - 1).abs() < ROW_SUM_TOLERANCE) | (sums == 0)  # a fully masked row is zero
    return bool(is_row.all() & (tensor >= 0).all() & sums.any())


def _supports_output_attentions(module: nn.Module) -> bool:
    """Return whether a module is an older Hugging Face model with eager attention."""
    # Fused implementations do not return weights.
    eager = getattr(getattr(module, "config", None), "_attn_implementation", None) == "eager"
    return eager and OUTPUT_ATTENTIONS in inspect.signature(module.forward).parameters


def _request_attentions(_module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return args, {**kwargs, OUTPUT_ATTENTIONS: True}


def _to_heads(weights: Tensor) -> Tensor:
    """Reshape weights (..., L, S) to (N, heads, L, S); three dimensions are (N, L, S)."""
    if weights.ndim < 4:
        return weights.reshape(-1, 1, *weights.shape[-2:])
    return weights.flatten(0, -4)
