"""Attribution of a class score to the pixels of the input: class activation maps (captum) and saliency maps."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from hookbus.errors import ConfigError
from hookbus.evaluation import call_model, copy_tensors, isolated_forward
from hookbus_visualization.features import select_layers
from hookbus_visualization.samples import PREDICTION_KEYS, describe_shapes, extract_predictions


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


def check_cam(model: nn.Module, layer: str | None = None) -> None:
    """Check that Grad-CAM can be computed for a model without wrappers, as in `compute_grad_cam`.

    Raises:
        ConfigError: If captum is not installed, or the layer does not exist.
    """
    _import_captum()
    _get_layer(model, layer)


def compute_saliency(model: nn.Module, inputs: Any, targets: Tensor | None = None) -> Tensor:
    """Compute the gradient of a class score with respect to the input (Simonyan et al. 2013, arXiv:1312.6034).

    Runs one forward and one backward pass in evaluation mode. The model and its gradients are not modified.

    Args:
        model: A classifier.
        inputs: A batch, passed to the model as in the training loop. The first floating-point tensor must be images,
            (N, C, H, W).
        targets: Class indices, (N,). Default: the predicted classes.

    Returns:
        The maximum absolute gradient over the channels, (N, H, W), float32, on the CPU.

    Raises:
        ValueError: If the model returns no class scores, the targets are not class indices of the model, or the inputs
            contain no images.
    """
    with isolated_forward(model, gradients=True) as inner:
        copies, images = make_leaf(inputs)
        if images.ndim != 4:
            raise ValueError(f"saliency requires images of shape (N, C, H, W), got shape {tuple(images.shape)}.")
        scores = extract_scores(call_model(inner, copies))
        selected = scores.gather(1, select_classes(scores, targets)[:, None])
        # The gradient of the sum is the gradient of each sample, because no sample affects the score of another one.
        (gradient,) = torch.autograd.grad(selected.float().sum(), images)
    return gradient.abs().amax(1).float().cpu()


def extract_scores(outputs: Any) -> Tensor:
    """Extract the class scores from the outputs of a model.

    Args:
        outputs: A tensor; a mapping with the scores under a usual key; or a tuple whose first item contains the scores.

    Returns:
        The scores, (N, C). A model with one number per sample has one class.

    Raises:
        ValueError: If the outputs contain no class scores.
    """
    scores = extract_predictions(outputs)
    if isinstance(scores, (tuple, list)) and scores:
        scores = scores[0]
    if isinstance(scores, Tensor) and scores.ndim in (1, 2):
        return scores if scores.ndim == 2 else scores[:, None]
    raise ValueError(
        "the model must return class scores of shape (N, C), or a mapping with them under one of the keys "
        f"{', '.join(PREDICTION_KEYS)}, got {describe_shapes(outputs)}."
    )


def select_classes(scores: Tensor, targets: Tensor | None) -> Tensor:
    """Return the class of each sample whose score is explained.

    Args:
        scores: Class scores, (N, C).
        targets: True class indices, (N,). Default: the predicted classes.

    Returns:
        The class indices, (N,), int64. Always 0 if there is only one class.

    Raises:
        ValueError: If the targets are not class indices of the model.
    """
    samples, classes = scores.shape
    if targets is None or classes == 1:
        return scores.argmax(1)
    indices = torch.as_tensor(targets, device=scores.device)
    are_integers = indices.shape == (samples,) and not indices.is_floating_point()
    if are_integers and indices.min() >= 0 and indices.max() < classes:
        # A copy, because autograd cannot save an inference tensor, such as a target of a validation.
        return indices.to(torch.int64, copy=True)
    raise ValueError(
        f"targets must be class indices of shape ({samples},) from 0 to {classes - 1}, got {indices.dtype} of shape "
        f"{tuple(indices.shape)} from {indices.min().item()} to {indices.max().item()}."
    )


def make_leaf(inputs: Any) -> tuple[Any, Tensor]:
    """Copy inputs so that gradients with respect to them can be computed.

    Args:
        inputs: A tensor, or a mapping or tuple with tensors.

    Returns:
        The inputs with all tensors copied, and the leaf tensor that the first floating-point tensor was copied from.

    Raises:
        ValueError: If the inputs contain no floating-point tensor.
    """
    leaf: list[Tensor] = []

    def copy(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and not leaf:
            leaf.append(tensor.detach().clone().requires_grad_())
            # The model receives a copy: an in-place operation on a leaf that requires a gradient is an error.
            return leaf[0].clone()
        return tensor.clone()

    copies = copy_tensors(inputs, copy)
    if not leaf:
        raise ValueError("gradients require a floating-point input, such as images, got none.")
    return copies, leaf[0]


def _get_layer(model: nn.Module, path: str | None) -> nn.Module:
    if path is not None:
        return next(iter(select_layers(model, [path]).values()))
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise ConfigError("Grad-CAM requires a 2D convolution, and the model has none. Set the path of a layer.")
    return convolutions[-1]


def _import_captum() -> Any:
    # Imported on demand: captum is an optional dependency.
    try:
        return importlib.import_module("captum.attr")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Grad-CAM requires {error.name}, which is not installed. Run: pip install "
            '"hookbus-visualization[cam]", or remove cam from `content`.'
        ) from error
