"""One hook that renders, and one that draws where the other renders."""

from __future__ import annotations

from torch import Tensor, nn

from hookbus import Hook, Run
from hookbus.errors import HookError
from hookbus_render.config import FrameConfig, RenderConfig
from hookbus_render.picture import picture_of
from hookbus_render.points import RenderPoints

__all__ = ["FrameHook", "RenderHook"]


class RenderHook(Hook):
    """Records the weight of a layer as a picture after each epoch, when others have drawn into it."""

    Config = RenderConfig
    config: RenderConfig
    observer = True
    ranks = "main"

    def after_epoch(self, run: Run, model: nn.Module) -> None:
        """Render, let others draw, record."""
        image = picture_of(_weight_of(model, self.config.layer))
        run.bus.declare(RenderPoints.after_render)(image)
        run.bus.emit("log_images", tag=self.config.tag, images=image[..., None])


class FrameHook(Hook):
    """Draws a frame into every picture that is rendered."""

    Config = FrameConfig
    config: FrameConfig
    observer = True

    def after_render(self, image: Tensor) -> None:
        """Draw along the four edges."""
        width, value = self.config.width, self.config.value
        image[:width], image[-width:] = value, value
        image[:, :width], image[:, -width:] = value, value


def _weight_of(model: nn.Module, layer: str | None) -> Tensor:
    """The weight of a layer, by its name in the model; of the first one where none is named.

    Raises:
        HookError: there is no such layer, or it has no weight.
    """
    weights = {name.removesuffix(".weight"): each for name, each in model.named_parameters() if name.endswith("weight")}
    name = next(iter(weights), None) if layer is None else layer
    if name not in weights:
        raise HookError(f"There is no layer {name!r} with a weight to render. Available: {', '.join(weights)}.")
    return weights[name]
