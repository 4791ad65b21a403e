"""A hook that renders weights, and a hook that listens at its point."""

from __future__ import annotations

from torch import Tensor, nn

from hookbus import Hook, Needs, Run
from hookbus.errors import HookError
from hookbus_render.config import FrameConfig, RenderConfig
from hookbus_render.image import render_weight
from hookbus_render.points import RenderPoints

__all__ = ["FrameHook", "RenderHook"]


class RenderHook(Hook):
    """Log the weight of a layer as an image after each epoch, after other hooks have modified it."""

    Config = RenderConfig
    config: RenderConfig
    needs = Needs(points=("after_epoch",))
    observer = True
    ranks = "main"

    def after_epoch(self, run: Run, model: nn.Module) -> None:
        """Render the weight, emit `after_render`, and log the image."""
        image = render_weight(_get_weight(model, self.config.layer))
        run.bus.declare(RenderPoints.after_render)(image)
        run.bus.emit("log_images", tag=self.config.tag, images=image[..., None])


class FrameHook(Hook):
    """Draw a frame into every rendered image."""

    Config = FrameConfig
    config: FrameConfig
    observer = True

    def after_render(self, image: Tensor) -> None:
        """Draw the frame."""
        width, value = self.config.width, self.config.value
        image[:width], image[-width:] = value, value
        image[:, :width], image[:, -width:] = value, value


def _get_weight(model: nn.Module, layer: str | None) -> Tensor:
    """Return the weight of a layer, by its name in the model; by default that of the first layer with a weight.

    Raises:
        HookError: If the layer does not exist or has no weight.
    """
    parameters = dict(model.named_parameters())
    weights = {name.removesuffix(".weight"): weight for name, weight in parameters.items() if name.endswith("weight")}
    name = next(iter(weights), None) if layer is None else layer
    if name not in weights:
        raise HookError(f"There is no layer {name!r} with a weight to render. Available: {', '.join(weights)}.")
    return weights[name]
