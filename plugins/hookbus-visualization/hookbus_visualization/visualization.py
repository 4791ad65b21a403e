"""The visualization hook: inputs with truth and prediction, and what goes on inside the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from hookbus import Run
from hookbus.errors import HookError
from hookbus.model.wrappers import unwrapped
from hookbus_visualization.base import SampleHook
from hookbus_visualization.cam import check_cam
from hookbus_visualization.config import VisualizationConfig
from hookbus_visualization.features import layers_of
from hookbus_visualization.images import as_array, is_image
from hookbus_visualization.inside import Inside
from hookbus_visualization.panel import RIGHT, Panel
from hookbus_visualization.parts import per_sample
from hookbus_visualization.samples import sample_panel
from hookbus_visualization.seen import Seen

__all__ = ["VisualizationHook"]


class VisualizationHook(SampleHook):
    """Draws samples with truth and prediction: classes, numbers, images made of images, tokens.

    Where the outputs hold no prediction, as in a loop that gives its loss alone, the model is called for them.
    """

    Config = VisualizationConfig
    config: VisualizationConfig

    def check(self, run: Run) -> None:
        """See that there is what shall be drawn: the layers in the model, and captum where it is needed."""
        if run.model is not None and "feature_maps" in self.config.content:
            layers_of(unwrapped(run.model), self.config.layers)
        if run.model is not None and "cam" in self.config.content:
            check_cam(unwrapped(run.model), self.config.cam_layer)

    def draw(self, run: Run, stage: str, seen: Seen, batch: Any, outputs: Any) -> None:
        """Draw the samples."""
        seen = self.complete(run, seen)
        try:
            panels = self._panels(seen)
        except (TypeError, ValueError) as error:
            self.nothing_fits(run, batch, outputs, f"nothing can be drawn: {error}.")
            return
        for content in self.config.content:
            if content == "predictions":
                self.deliver(run, stage, content, panels, _score(panels))
            elif (model := self.model_of(run)) is not None:
                self._look(run, stage, content, self._inside(model, seen, panels))

    def _look(self, run: Run, stage: str, content: str, inside: Inside) -> None:
        """Deliver what goes on inside the model; what cannot be seen in it is told once."""
        try:
            drawn = getattr(inside, content)()
        except (HookError, ValueError) as error:
            self.say_once(run, f"no {content} can be drawn: {error}")
            return
        for what, panels in drawn.items():
            self.deliver(run, stage, what, panels)

    def _inside(self, model: nn.Module, seen: Seen, panels: list[Panel]) -> Inside:
        images = _on_host(seen.images)
        pixels = [self.pixels(each) for each in images] if all(is_image(as_array(each)) for each in images) else None
        targets = None if seen.targets is None else per_sample(_on_host(seen.targets), len(images))
        return Inside(model, self.config, seen.inputs, panels, pixels, targets)

    def _panels(self, seen: Seen) -> list[Panel]:
        """A panel for each sample.

        Raises:
            ValueError: one cannot be drawn.
        """
        if seen.images is None:
            raise ValueError("there are no inputs")
        images, config = _on_host(seen.images), self.config
        others = (per_sample(_on_host(each), len(images)) for each in (seen.targets, seen.predictions))
        return [
            sample_panel(image, target, prediction, config.class_names, self.pixels, config.score_thr)
            for image, target, prediction in zip(images, *others, strict=True)
        ]


def _on_host(value: Any) -> Any:
    """A batch on the host, so that its samples need not be fetched one by one."""
    if isinstance(value, Mapping):
        return {key: _on_host(each) for key, each in value.items()}
    return as_array(value) if hasattr(value, "detach") else value


def _score(panels: list[Panel]) -> str:
    judged = [panel.frame == RIGHT for panel in panels if panel.frame is not None]
    return f"{sum(judged)} of {len(judged)} are right" if judged else ""
