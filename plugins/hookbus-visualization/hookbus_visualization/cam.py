"""Class activation maps, computed by captum. Requires no run."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hookbus.errors import ConfigError
from hookbus_visualization.features import select_layers
from hookbus_visualization.grid import resize_to_fit
from hookbus_visualization.heatmap import normalize, overlay_heatmap
from hookbus_visualization.isolated_forward import copy_tensors, isolated_forward
from hookbus_visualization.panel import RGBImage
from hookbus_visualization.preserve_model import call_model
from hookbus_visualization.scores import extract_scores, make_leaf, select_classes

__all__ = ["check_cam", "compute_grad_cam", "render_cam"]


def compute_grad_cam(model: nn.Module, inputs: Any, targets: Tensor | None = None, layer: str | None = None) -> Tensor:
    """Compute Grad-CAM (Selvaraju et al. 2017, arXiv:1610.02391).

    Grad-CAM is the sum of the channels of a layer, weighted by their mean gradient. Runs two forward passes and one
    backward pass in evaluation mode. The model and its gradients are not modified.

    Args:
        model: A classifier.
        inputs: A batch, passed to the model as in the training loop.
        targets: Class indices, (N,). Default: the predicted classes.
        layer: Path of a layer with outputs (N, C, h, w). Default: the last 2D convolution.

    Returns:
        The class activation maps, (N, h, w), float32, non-negative, on the CPU.

    Raises:
        ConfigError: If captum is not installed, or the layer does not exist.
        ValueError: If the model returns no class scores, the targets are not class indices of the model, or the layer
            returns no maps.
    """
    attribution = _import_captum().LayerGradCam
    with isolated_forward(model, gradients=True) as inner:
        copies, images = make_leaf(inputs)

        def scores(_: Tensor) -> Tensor:
            # captum passes only `images`, while the model may have more inputs. Copied because the function is called
            # twice, and the model may modify its inputs in place.
            return extract_scores(call_model(inner, copy_tensors(copies)))

        classes = select_classes(scores(images), targets)
        maps = attribution(scores, _get_layer(inner, layer)).attribute(images, target=classes, relu_attributions=True)
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise ValueError(
            f"Grad-CAM requires a layer with outputs of shape (N, C, h, w), got layer {layer!r}. Set the layer to the "
            "path of a convolution."
        )
    return maps[:, 0].detach().float().cpu()


def render_cam(
    model: nn.Module,
    inputs: Any,
    images: Sequence[RGBImage],
    targets: Tensor | None = None,
    layer: str | None = None,
) -> list[RGBImage]:
    """Render the Grad-CAM map of each image as an overlay, normalized per image.

    Args:
        model: A classifier.
        inputs: A batch, as in `compute_grad_cam`.
        images: Pixels of the same samples, (H, W, 3) each.
        targets: Class indices, (N,). Default: the predicted classes.
        layer: Path of a layer with outputs (N, C, h, w). Default: the last 2D convolution.

    Returns:
        One image, (H, W, 3), uint8, per sample; small images are enlarged.

    Raises:
        ConfigError: If captum is not installed, or the layer does not exist.
        ValueError: If the class activation maps cannot be computed, as in `compute_grad_cam`.
    """
    maps = compute_grad_cam(model, inputs, targets, layer).numpy()
    return [
        overlay_heatmap(resize_to_fit(image), normalize(values)) for image, values in zip(images, maps, strict=True)
    ]


def check_cam(model: nn.Module, layer: str | None = None) -> None:
    """Check that Grad-CAM can be computed for a model.

    Args:
        model: The model without its wrappers.
        layer: Path of the layer, as in `compute_grad_cam`.

    Raises:
        ConfigError: If captum is not installed, or the layer does not exist.
    """
    _import_captum()
    _get_layer(model, layer)


def _get_layer(model: nn.Module, path: str | None) -> nn.Module:
    if path is not None:
        return next(iter(select_layers(model, [path]).values()))
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise ConfigError(["Grad-CAM requires a 2D convolution, and the model has none. Set the path of a layer."])
    return convolutions[-1]


def _import_captum() -> Any:
    # Imported on demand: captum is an optional dependency.
    try:
        return importlib.import_module("captum.attr")
    except ModuleNotFoundError as error:
        raise ConfigError(
            [
                f"Grad-CAM requires {error.name}, which is not installed. Run: pip install "
                "'hookbus-visualization[cam]', or remove cam from `content`."
            ]
        ) from error
