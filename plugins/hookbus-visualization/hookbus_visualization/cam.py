"""Class activation: which places of an image speak for a class. Computed by captum.

Usable without a run.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hookbus.errors import ConfigError
from hookbus_visualization.features import layers_of
from hookbus_visualization.grid import fitted
from hookbus_visualization.heatmap import overlaid, scaled
from hookbus_visualization.panel import Picture
from hookbus_visualization.probe import copied, probing
from hookbus_visualization.scores import class_indices, leaves, scores_of
from hookbus_visualization.unchanged import call

__all__ = ["cam_maps", "cam_pictures", "check_cam"]


def cam_maps(model: nn.Module, inputs: Any, targets: Tensor | None = None, layer: str | None = None) -> Tensor:
    """Grad-CAM (Selvaraju et al. 2017, arXiv:1610.02391): the channels of a layer, weighted by their mean gradient.

    The model makes two more forward passes and a backward pass, as in a validation, and is left as it was, gradients
    included.

    Args:
        model: a classifier.
        inputs: a batch, with which the model is called as the loop does.
        targets: the classes, (N,); None for those that the model predicts.
        layer: the path of the layer, which gives (N, C, h, w); default the last 2-d convolution.

    Returns:
        (N, h, w), float32, on the CPU, not below 0.

    Raises:
        ConfigError: captum is not installed, or the model has no such layer.
        ValueError: the model returns no scores of classes, the targets are not among them, or the layer gives no maps.
    """
    attribution = _captum().LayerGradCam
    with probing(model, gradients=True) as inner:
        copies, images = leaves(inputs)

        def scores(_: Tensor) -> Tensor:
            return scores_of(call(inner, copied(copies)))

        chosen = class_indices(scores(images), targets)
        maps = attribution(scores, _layer(inner, layer)).attribute(images, target=chosen, relu_attributions=True)
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise ValueError("Grad-CAM needs a layer that gives maps (N, C, h, w): name a convolution as its layer.")
    return maps[:, 0].detach().float().cpu()


def cam_pictures(
    model: nn.Module,
    inputs: Any,
    images: Sequence[Picture],
    targets: Tensor | None = None,
    layer: str | None = None,
) -> list[Picture]:
    """Draw Grad-CAM over each image, from the smallest value of its map to the largest.

    Arguments and errors are those of `cam_maps`.

    Args:
        model, inputs, targets, layer: likewise.
        images: the same samples as pictures, (H, W, 3).

    Returns:
        A picture for each image, enlarged where the image is small.
    """
    maps = cam_maps(model, inputs, targets, layer).numpy()
    return [overlaid(fitted(image), scaled(each)) for image, each in zip(images, maps, strict=True)]


def check_cam(model: nn.Module, layer: str | None = None) -> None:
    """See that Grad-CAM can be drawn of a model.

    Args:
        model: without its wrappers.
        layer: as for `cam_maps`.

    Raises:
        ConfigError: captum is not installed, or the model has no such layer.
    """
    _captum()
    _layer(model, layer)


def _layer(model: nn.Module, path: str | None) -> nn.Module:
    if path is not None:
        return next(iter(layers_of(model, [path]).values()))
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise ConfigError(["Grad-CAM looks at the last convolution, and the model has none: name a layer."])
    return convolutions[-1]


def _captum() -> Any:
    try:
        return importlib.import_module("captum.attr")
    except ModuleNotFoundError as error:
        raise ConfigError(
            [
                f"Grad-CAM needs {error.name}, which is not installed. Run: pip install 'hookbus-visualization[cam]', "
                "or leave cam out of content."
            ]
        ) from error
