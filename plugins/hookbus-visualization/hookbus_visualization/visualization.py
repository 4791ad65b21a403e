"""The `visualization` hook: inputs with targets and predictions, and the internals of the model."""

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
    """Hook that renders samples with targets and predictions: classes, numbers, images, tokens, boxes, label maps.

    If the outputs contain no predictions, such as in a loop whose step returns only the loss, the model is called in
    evaluation mode.
    """

    Config = VisualizationConfig
    config: VisualizationConfig

    def check(self, run: Run) -> None:
        """Check that the model has the configured layers, and that captum is installed if `content` contains `cam`.

        Raises:
            ConfigError: If a layer does not exist, or captum is not installed.
        """
        if run.model is not None and "feature_maps" in self.config.content:
            layers_of(unwrapped(run.model), self.config.layers)
        if run.model is not None and "cam" in self.config.content:
            check_cam(unwrapped(run.model), self.config.cam_layer)

    def draw(self, run: Run, stage: str, samples: Seen, batch: Any, outputs: Any) -> None:
        """Render each configured content of the samples."""
        samples = self.complete(run, samples)
        try:
            panels = self._panels(samples)
        except (TypeError, ValueError) as error:
            self.nothing_fits(run, batch, outputs, f"no samples can be drawn: {error}.")
            return
        for content in self.config.content:
            if content == "predictions":
                self.deliver(run, stage, content, panels, _score(panels))
            elif (model := self.model_of(run)) is not None:
                self._look(run, stage, content, self._inside(model, samples, panels))

    def _look(self, run: Run, stage: str, content: str, inside: Inside) -> None:
        """Publish one content of the model internals; a warning is logged once if the model does not support it."""
        # One unsupported content must not prevent the others from being rendered.
        try:
            records = getattr(inside, content)()
        except (HookError, ValueError) as error:
            self.say_once(run, f"no {content} can be rendered: {error}")
            return
        for label, panels in records.items():
            self.deliver(run, stage, label, panels)

    def _inside(self, model: nn.Module, samples: Seen, panels: list[Panel]) -> Inside:
        images = _on_host(samples.images)
        are_images = all(is_image(as_array(image)) for image in images)
        pixels = [self.pixels(image) for image in images] if are_images else None
        targets = None if samples.targets is None else per_sample(_on_host(samples.targets), len(images))
        return Inside(model, self.config, samples.inputs, panels, pixels, targets)

    def _panels(self, samples: Seen) -> list[Panel]:
        """Return one panel per sample.

        Raises:
            ValueError: If a sample cannot be rendered.
        """
        if samples.images is None:
            raise ValueError("the batch contains no inputs")
        images, config = _on_host(samples.images), self.config
        columns = (per_sample(_on_host(values), len(images)) for values in (samples.targets, samples.predictions))
        return [
            sample_panel(image, target, prediction, config.class_names, self.pixels, config.score_thr)
            for image, target, prediction in zip(images, *columns, strict=True)
        ]


def _on_host(value: Any) -> Any:
    """Copy a batched value to the host."""
    # One transfer for the batch: a transfer per sample synchronizes with the device each time.
    if isinstance(value, Mapping):
        return {key: _on_host(item) for key, item in value.items()}
    return as_array(value) if hasattr(value, "detach") else value


def _score(panels: list[Panel]) -> str:
    # The frame of a panel is the only place that stores whether the prediction is correct.
    outcomes = [panel.frame == RIGHT for panel in panels if panel.frame is not None]
    return f"{sum(outcomes)} of {len(outcomes)} are right" if outcomes else ""
