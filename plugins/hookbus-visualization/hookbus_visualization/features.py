"""Feature maps: selection of layers, capture of their outputs, and rendering. Requires no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from hookbus.distributed import named_modules
from hookbus.errors import ConfigError, HookError, suggest_names
from hookbus.evaluation import call_model, copy_tensors, isolated_forward
from hookbus_visualization.anomalies import read_named
from hookbus_visualization.images import apply_colormap, normalize
from hookbus_visualization.panel import Panel
from hookbus_visualization.samples import describe_shapes

MAX_SIDE_PIXELS = 128
"""Maximum side of a feature map in pixels; larger maps are average-pooled on their device."""

MAX_DEFAULT_LAYERS = 8
"""Maximum number of layers that are selected by default."""

VISUALIZE_METHOD = "visualize_features"
"""Method of a model that returns the tensors to render."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def select_layers(model: nn.Module, targets: Sequence[str] = ()) -> dict[str, nn.Module]:
    """Select layers by path or pattern.

    Args:
        model: The model.
        targets: Paths of modules (`backbone.layer1`), or patterns with `*`, `?` and `[...]`, where `*` also matches
            dots. Default: at most eight convolutions, or innermost modules if the model has no convolution, at equal
            distances from the first to the last.

    Returns:
        The layers by path, in the order of the model.

    Raises:
        ConfigError: If a path or pattern matches no layer; the message contains similar names.
    """
    layers = {path: module for path, module in named_modules(model) if path}
    if not targets:
        convolutions = [item for item in layers.items() if isinstance(item[1], CONVOLUTIONS)]
        defaults = convolutions or [item for item in layers.items() if not any(item[1].children())]
        indices = np.linspace(0, len(defaults) - 1, min(len(defaults), MAX_DEFAULT_LAYERS)).round()
        return dict(defaults[int(i)] for i in indices)
    unknown = [target for target in targets if not any(fnmatchcase(path, target) for path in layers)]
    if unknown:
        raise ConfigError(f"The model has no layer {target!r}.{suggest_names(target, layers)}" for target in unknown)
    return {path: layer for path, layer in layers.items() if any(fnmatchcase(path, target) for target in targets)}


def to_maps(output: Tensor, count: int) -> Tensor:
    """Convert the output of a layer for one sample to small 2D maps.

    Args:
        output: Output without the batch dimension: (C, H, W); (C, D, H, W), of which the middle slice is used; (L, C)
            or (C, L), one map; or (C,), one map with a single row.
        count: Maximum number of channels; the first ones are used.

    Returns:
        A copy of the maps, (channels, height, width), float32, on the CPU. No side is longer than `MAX_SIDE_PIXELS`.
    """
    while output.ndim > 3:
        output = output[:, output.shape[1] // 2]
    maps = output if output.ndim == 3 else output.reshape(1, -1, output.shape[-1] if output.ndim else 1)
    # Pooled before the copy to the host, which would otherwise transfer the full resolution. A copy even on the CPU: a
    # later layer may modify the output in place, and a view keeps the full output alive.
    return downsample(maps[:count].detach().float(), MAX_SIDE_PIXELS).to("cpu", copy=True)


def compute_feature_maps(
    model: nn.Module, inputs: Any, layers: Sequence[str] = (), count: int = 16, sample: int = 0
) -> dict[str, Tensor]:
    """Compute the feature maps of layers for one sample.

    Runs one forward pass in evaluation mode, without gradients. The model is not modified. If no layers are selected
    and the model has a method `visualize_features`, that method is called instead, with the same inputs. It returns
    tensors, by name or in a list, each of shape (N, C, H, W) or any other shape that `to_maps` accepts after the batch
    dimension is removed.

    Args:
        model: The model.
        inputs: A batch, passed to the model as in the training loop.
        layers: Paths or patterns, as in `select_layers`.
        count: Maximum number of channels per layer.
        sample: Index of the sample in the batch; -1 for the last one.

    Returns:
        The maps of each used layer, by path, in the order of the model, as returned by `to_maps`.

    Raises:
        ConfigError: If a path or pattern matches no layer.
        HookError: If no layer, or `visualize_features`, returned a tensor with samples.
    """
    captured: dict[str, Tensor] = {}

    def capture(path: str, output: Any) -> None:
        tensor = _find_batch_tensor(output)
        if tensor is not None:
            captured[path] = to_maps(tensor[sample], count)

    # The context removes the hooks on exit.
    with isolated_forward(model) as inner:
        method = getattr(inner, VISUALIZE_METHOD, None)
        if not layers and callable(method):
            return _to_named_maps(call_model(method, copy_tensors(inputs)), count, sample)
        selected = select_layers(inner, layers)
        for path, layer in selected.items():
            # `path=path` binds the path of this iteration.
            layer.register_forward_hook(lambda _, __, output, path=path: capture(path, output))
        call_model(inner, copy_tensors(inputs))
    if not captured:
        raise HookError(
            f"no feature maps of the layers {list(selected)}: the model does not use them, or they return no samples."
        )
    # Captured in the order of the calls; the order of the model does not depend on the inputs.
    return {path: captured[path] for path in selected if path in captured}


def render_feature_maps(layers: Mapping[str, Tensor]) -> dict[str, list[Panel]]:
    """Render feature maps with one panel per channel; each channel is normalized separately.

    Args:
        layers: Maps, (C, H, W), by path, as returned by `compute_feature_maps`; the path is named in anomalies.
    """
    return read_named(_render_channels, layers)


def downsample(maps: Tensor, max_side: int) -> Tensor:
    """Average-pool maps, (N, H, W), to at most `max_side` rows and columns."""
    height, width = maps.shape[1:]
    if max(height, width) <= max_side:  # maps without elements cannot be pooled
        return maps
    return functional.adaptive_avg_pool2d(maps, (min(height, max_side), min(width, max_side)))


def _render_channels(maps: Tensor) -> list[Panel]:
    return [Panel(apply_colormap(normalize(channel)), f"channel {i}") for i, channel in enumerate(maps.numpy())]


def _to_named_maps(values: Any, count: int, sample: int) -> dict[str, Tensor]:
    """Return the maps of the values returned by `visualize_features`, by name or index."""
    items = values if isinstance(values, (tuple, list)) else [values]
    by_name = values if isinstance(values, Mapping) else dict(enumerate(items))
    tensors = {str(name): _find_batch_tensor(value) for name, value in by_name.items()}
    maps = {name: to_maps(tensor[sample], count) for name, tensor in tensors.items() if tensor is not None}
    if maps:
        return maps
    raise HookError(
        f"`{VISUALIZE_METHOD}` of the model must return tensors of shape (N, C, H, W), got {describe_shapes(values)}."
    )


def _find_batch_tensor(output: Any) -> Tensor | None:
    """Return the first tensor of a layer output; None if it has no batch dimension or no elements."""
    tensor = _find_tensor(output)
    return tensor if tensor is not None and tensor.ndim > 1 and tensor.numel() else None


def _find_tensor(output: Any) -> Tensor | None:
    """Return the first tensor of a nested layer output, depth first."""
    if isinstance(output, Tensor):
        return output
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((tensor for item in items if (tensor := _find_tensor(item)) is not None), None)
