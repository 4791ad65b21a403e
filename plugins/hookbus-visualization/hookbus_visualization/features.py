"""What layers of a model make of a sample: the maps of some channels, and pictures of them.

Usable without a run.
"""

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
"""Larger maps are averaged down to this many pixels a side while they are still where the model is."""

SHOWN = 8
"""So many layers are drawn where none is named."""

OWN = "visualize_features"
"""The method of a model that shows what goes on inside."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def layers_of(model: nn.Module, targets: Sequence[str] = ()) -> dict[str, nn.Module]:
    """The layers that paths and patterns stand for.

    Args:
        model: the model.
        targets: paths of modules (`backbone.layer1`), or patterns with `*`, `?` and `[...]`, in which `*` stands for
            dots as well. None at all stands for the convolutions, or for all innermost layers where there are none:
            for eight of them, evenly spread from the first to the last.

    Returns:
        By path, in the order of the model.

    Raises:
        ConfigError: a target stands for no layer; near names are in the message.
    """
    layers = {path: module for path, module in modules_of(model).items() if path}
    if not targets:
        convolutions = [item for item in layers.items() if isinstance(item[1], CONVOLUTIONS)]
        return dict(_spread(convolutions or [item for item in layers.items() if not any(item[1].children())]))
    unknown = [each for each in targets if not any(fnmatchcase(path, each) for path in layers)]
    if unknown:
        raise ConfigError(f"The model has no layer {each!r}.{did_you_mean(each, layers)}" for each in unknown)
    return {path: layer for path, layer in layers.items() if any(fnmatchcase(path, each) for each in targets)}


def maps_of(output: Tensor, count: int) -> Tensor:
    """What a layer makes of one sample, as maps that are small enough to keep.

    Args:
        output: without the batch. (C, H, W): channels; (C, D, H, W): channels, of which the slice in the middle is
            taken; (L, C) or (C, L): one map; (C,): one map of a single row.
        count: at most so many channels are taken, the first ones.

    Returns:
        (channels, height, width), float32, on the CPU; a copy. No side is longer than `SIDE`.
    """
    while output.ndim > 3:
        output = output[:, output.shape[1] // 2]
    maps = output if output.ndim == 3 else output.reshape(1, -1, output.shape[-1] if output.ndim else 1)
    kept = maps[:count].detach().float()
    if max(kept.shape[1:]) > SIDE:
        height, width = kept.shape[1:]
        kept = functional.adaptive_avg_pool2d(kept, (min(height, SIDE), min(width, SIDE)))
    return kept.to("cpu", copy=True)


@contextmanager
def watched(layers: Mapping[str, nn.Module], count: int, sample: int = 0) -> Iterator[dict[str, Tensor]]:
    """Keep what layers make of one sample of a batch, for as long as the context lasts.

    Args:
        layers: by path.
        count: at most so many channels of each.
        sample: its index in the batch; -1 for the last.

    Yields:
        By path, the maps of the last call, as `maps_of` makes them; layers that made nothing yet are not in it.
    """
    found: dict[str, Tensor] = {}

    def keep(path: str, output: Any) -> None:
        tensor = _samples_in(output)
        if tensor is not None:
            found[path] = maps_of(tensor[sample], count)

    with ExitStack() as hooks:
        for path, layer in layers.items():
            handle = layer.register_forward_hook(lambda _, __, output, path=path: keep(path, output))
            hooks.callback(handle.remove)
        yield found


def feature_maps(
    model: nn.Module, inputs: Any, layers: Sequence[str] = (), count: int = 16, sample: int = 0
) -> dict[str, Tensor]:
    """What layers make of one sample.

    The model makes one more forward pass, without gradients and as in a validation, and is left as it was. Where no
    layer is named and it has a method `visualize_features`, that is called in its place, with the same inputs: it
    returns what shall be drawn, by name or in a list, each of shape (N, C, H, W) or as `maps_of` takes it.

    Args:
        model: the model.
        inputs: a batch: the model is called with it as the loop does.
        layers: paths or patterns, as for `layers_of`.
        count: at most so many channels of each.
        sample: its index in the batch; -1 for the last.

    Returns:
        By path in the order of the model, maps as `maps_of` makes them, for the layers that were used.

    Raises:
        ConfigError: there is no such layer.
        HookError: no layer, or `visualize_features`, gave something that can be drawn.
    """
    with probing(model) as inner:
        if not layers and (own := _own(inner)) is not None:
            return _named(call(own, copied(inputs)), count, sample)
        chosen = layers_of(inner, layers)
        with watched(chosen, count, sample) as found:
            call(inner, copied(inputs))
    if not found:
        raise HookError(f"Nothing is drawn of layers {list(chosen)}: not used by the model, or without samples.")
    return {path: found[path] for path in chosen if path in found}


def feature_pictures(
    model: nn.Module, inputs: Any, layers: Sequence[str] = (), max_features: int = 16
) -> dict[str, list[Picture]]:
    """Draw what layers make of the first sample.

    Arguments and errors are those of `feature_maps`; `max_features` is its `count`.

    Returns:
        By path, a picture (H, W, 3) for each channel, each stretched over all colours.
    """
    found = feature_maps(model, inputs, layers, max_features)
    return {path: pictures_of(maps) for path, maps in found.items()}


def pictures_of(maps: Tensor) -> list[Picture]:
    """Draw maps (count, height, width), each stretched over all colours."""
    return [coloured(scaled(each)) for each in maps.numpy()]


def _spread(items: Sequence[T]) -> Sequence[T]:
    """So many of them as are shown, from the first to the last."""
    if len(items) <= SHOWN:
        return items
    return [items[round(i * (len(items) - 1) / (SHOWN - 1))] for i in range(SHOWN)]


def _own(model: nn.Module) -> Callable[..., Any] | None:
    """What a model has to show of itself."""
    own = getattr(model, OWN, None)
    return own if callable(own) else None


def _named(shown: Any, count: int, sample: int) -> dict[str, Tensor]:
    """The maps of what a model shows of itself."""
    parts = list(shown) if isinstance(shown, (tuple, list)) else [shown]
    named = shown if isinstance(shown, Mapping) else dict(enumerate(parts))
    tensors = {str(name): _samples_in(each) for name, each in named.items()}
    found = {name: maps_of(each[sample], count) for name, each in tensors.items() if each is not None}
    if found:
        return found
    raise HookError(f"{OWN} of the model returned {shapes(shown)}. Let it return tensors (N, C, H, W) by name.")


def _samples_in(output: Any) -> Tensor | None:
    """The first tensor of what a layer returned, if it has samples."""
    tensor = _tensor_in(output)
    return tensor if tensor is not None and tensor.ndim > 1 and tensor.numel() else None


def _tensor_in(output: Any) -> Tensor | None:
    """The first tensor of what a layer returned."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((found for part in parts if (found := _tensor_in(part)) is not None), None)
