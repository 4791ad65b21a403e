"""Feature maps: selection of layers, capture of their outputs, and rendering. Requires no run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from hookbus.errors import ConfigError, HookError, did_you_mean
from hookbus_visualization.heatmap import coloured, scaled
from hookbus_visualization.panel import Picture
from hookbus_visualization.probe import copied, modules_of, probing
from hookbus_visualization.seen import shapes
from hookbus_visualization.unchanged import call

__all__ = [
    "SIDE",
    "feature_maps",
    "feature_pictures",
    "layers_of",
    "maps_of",
    "pictures_of",
    "watched",
]

T = TypeVar("T")

SIDE = 128
"""Maximum side of a feature map in pixels; larger maps are average-pooled on their device."""

SHOWN = 8
"""Maximum number of layers that are selected by default."""

OWN = "visualize_features"
"""Method of a model that returns the tensors to render."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def layers_of(model: nn.Module, targets: Sequence[str] = ()) -> dict[str, nn.Module]:
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
    layers = {path: module for path, module in modules_of(model).items() if path}
    if not targets:
        convolutions = [item for item in layers.items() if isinstance(item[1], CONVOLUTIONS)]
        return dict(_spread(convolutions or [item for item in layers.items() if not any(item[1].children())]))
    unknown = [target for target in targets if not any(fnmatchcase(path, target) for path in layers)]
    if unknown:
        raise ConfigError(f"The model has no layer {target!r}.{did_you_mean(target, layers)}" for target in unknown)
    return {path: layer for path, layer in layers.items() if any(fnmatchcase(path, target) for target in targets)}


def maps_of(output: Tensor, count: int) -> Tensor:
    """Convert the output of a layer for one sample to small 2D maps.

    Args:
        output: Output without the batch dimension: (C, H, W); (C, D, H, W), of which the middle slice is used; (L, C)
            or (C, L), one map; or (C,), one map with a single row.
        count: Maximum number of channels; the first ones are used.

    Returns:
        A copy of the maps, (channels, height, width), float32, on the CPU. No side is longer than `SIDE`.
    """
    while output.ndim > 3:
        output = output[:, output.shape[1] // 2]
    maps = output if output.ndim == 3 else output.reshape(1, -1, output.shape[-1] if output.ndim else 1)
    maps = maps[:count].detach().float()
    # Pooled before the copy to the host, which would otherwise transfer the full resolution.
    if max(maps.shape[1:]) > SIDE:
        height, width = maps.shape[1:]
        maps = functional.adaptive_avg_pool2d(maps, (min(height, SIDE), min(width, SIDE)))
    # A copy even on the CPU: a later layer may modify the output in place, and a view keeps the full output alive.
    return maps.to("cpu", copy=True)


@contextmanager
def watched(layers: Mapping[str, nn.Module], count: int, sample: int = 0) -> Iterator[dict[str, Tensor]]:
    """Context manager that captures the outputs of layers for one sample of a batch.

    Args:
        layers: Layers by path.
        count: Maximum number of channels per layer.
        sample: Index of the sample in the batch; -1 for the last one.

    Yields:
        The maps of the last call of each layer, by path, as returned by `maps_of`. Layers without an output are not
        included.
    """
    captured: dict[str, Tensor] = {}

    def capture(path: str, output: Any) -> None:
        tensor = _samples_in(output)
        if tensor is not None:
            captured[path] = maps_of(tensor[sample], count)

    with ExitStack() as handles:
        for path, layer in layers.items():
            # `path=path` binds the path of this iteration.
            handle = layer.register_forward_hook(lambda _, __, output, path=path: capture(path, output))
            handles.callback(handle.remove)
        yield captured


def feature_maps(
    model: nn.Module, inputs: Any, layers: Sequence[str] = (), count: int = 16, sample: int = 0
) -> dict[str, Tensor]:
    """Compute the feature maps of layers for one sample.

    Runs one forward pass in evaluation mode, without gradients. The model is not modified. If no layers are selected
    and the model has a method `visualize_features`, that method is called instead, with the same inputs. It returns
    tensors, by name or in a list, each of shape (N, C, H, W) or any other shape that `maps_of` accepts after the batch
    dimension is removed.

    Args:
        model: The model.
        inputs: A batch, passed to the model as in the training loop.
        layers: Paths or patterns, as in `layers_of`.
        count: Maximum number of channels per layer.
        sample: Index of the sample in the batch; -1 for the last one.

    Returns:
        The maps of each used layer, by path, in the order of the model, as returned by `maps_of`.

    Raises:
        ConfigError: If a path or pattern matches no layer.
        HookError: If no layer, or `visualize_features`, returned a tensor with samples.
    """
    with probing(model) as inner:
        if not layers and (method := _own(inner)) is not None:
            return _named(call(method, copied(inputs)), count, sample)
        selected = layers_of(inner, layers)
        with watched(selected, count, sample) as captured:
            call(inner, copied(inputs))
    if not captured:
        raise HookError(
            f"no feature maps of the layers {list(selected)}: the model does not use them, or they return no samples."
        )
    # Captured in the order of the calls; the order of the model does not depend on the inputs.
    return {path: captured[path] for path in selected if path in captured}


def feature_pictures(
    model: nn.Module, inputs: Any, layers: Sequence[str] = (), max_features: int = 16
) -> dict[str, list[Picture]]:
    """Render the feature maps of layers for the first sample.

    Raises the errors of `feature_maps`.

    Args:
        model: The model.
        inputs: A batch, passed to the model as in the training loop.
        layers: Paths or patterns, as in `layers_of`.
        max_features: Maximum number of channels per layer.

    Returns:
        One image, (H, W, 3), uint8, per channel, by path. Each image is normalized separately.
    """
    maps = feature_maps(model, inputs, layers, max_features)
    return {path: pictures_of(channels) for path, channels in maps.items()}


def pictures_of(maps: Tensor) -> list[Picture]:
    """Render feature maps, (C, H, W), as one heatmap per channel, each normalized separately."""
    return [coloured(scaled(channel)) for channel in maps.numpy()]


def _spread(items: Sequence[T]) -> Sequence[T]:
    """Return at most `SHOWN` items at equal distances, including the first and the last."""
    if len(items) <= SHOWN:
        return items
    return [items[round(i * (len(items) - 1) / (SHOWN - 1))] for i in range(SHOWN)]


def _own(model: nn.Module) -> Callable[..., Any] | None:
    """Return the method `visualize_features` of a model, or None."""
    method = getattr(model, OWN, None)
    return method if callable(method) else None


def _named(values: Any, count: int, sample: int) -> dict[str, Tensor]:
    """Return the maps of the values returned by `visualize_features`, by name or index."""
    items = list(values) if isinstance(values, (tuple, list)) else [values]
    by_name = values if isinstance(values, Mapping) else dict(enumerate(items))
    tensors = {str(name): _samples_in(value) for name, value in by_name.items()}
    maps = {name: maps_of(tensor[sample], count) for name, tensor in tensors.items() if tensor is not None}
    if maps:
        return maps
    raise HookError(f"`{OWN}` of the model must return tensors of shape (N, C, H, W), got {shapes(values)}.")


def _samples_in(output: Any) -> Tensor | None:
    """Return the first tensor of a layer output; None if it has no batch dimension or no elements."""
    tensor = _tensor_in(output)
    return tensor if tensor is not None and tensor.ndim > 1 and tensor.numel() else None


def _tensor_in(output: Any) -> Tensor | None:
    """Return the first tensor of a nested layer output, depth first."""
    if isinstance(output, Tensor):
        return output
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((tensor for item in items if (tensor := _tensor_in(item)) is not None), None)
