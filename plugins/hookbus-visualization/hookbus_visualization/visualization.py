"""The `visualization` hook: inputs with targets and predictions, and the internals of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from hookbus import Run
from hookbus.distributed import unwrap_model
from hookbus.errors import HookError
from hookbus_visualization.attribution import check_cam
from hookbus_visualization.base import SampleHook
from hookbus_visualization.config import VisualizationConfig
from hookbus_visualization.features import select_layers
from hookbus_visualization.images import is_image, to_array
from hookbus_visualization.interpretability import ModelInspector
from hookbus_visualization.panel import CORRECT_COLOR, Panel
from hookbus_visualization.panels import build_sample_panel
from hookbus_visualization.samples import Samples, split_samples


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
            ConfigError: If a layer does not exist, captum is not installed, or another hook has the same `out_dir`.
        """
        super().check(run)
        if run.model is not None and "feature_maps" in self.config.content:
            select_layers(unwrap_model(run.model), self.config.layers)
        if run.model is not None and "cam" in self.config.content:
            check_cam(unwrap_model(run.model), self.config.cam_layer)

    def draw(self, run: Run, stage: str, samples: Samples, batch: Any, outputs: Any) -> None:
        """Render each configured content of the samples."""
        samples = self.add_predictions(run, samples)
        try:
            panels = self._build_panels(samples)
        except (TypeError, ValueError) as error:
            self.warn_no_samples(run, batch, outputs, f"no samples can be drawn: {error}.")
            return
        for content in self.config.content:
            if content == "predictions":
                self.publish(run, stage, content, panels, _format_accuracy(panels))
            elif (model := self.get_callable_model(run)) is not None:
                self._publish_content(run, stage, content, self._build_inspector(model, samples, panels))

    def _publish_content(self, run: Run, stage: str, content: str, inspector: ModelInspector) -> None:
        """Publish one content of the model internals; a warning is logged once if the model does not support it."""
        # One unsupported content must not prevent the others from being rendered.
        try:
            records = getattr(inspector, content)()
        except (HookError, ValueError) as error:
            self.warn_once(run, f"no {content} can be rendered: {error}")
            return
        for label, panels in records.items():
            self.publish(run, stage, label, panels)

    def _build_inspector(self, model: nn.Module, samples: Samples, panels: list[Panel]) -> ModelInspector:
        images = _to_host(samples.images)
        are_images = all(is_image(to_array(image)) for image in images)
        pixels = [self.convert_image(image) for image in images] if are_images else None
        targets = None if samples.targets is None else split_samples(_to_host(samples.targets), len(images))
        return ModelInspector(model, self.config, samples.inputs, panels, pixels, targets)

    def _build_panels(self, samples: Samples) -> list[Panel]:
        """Return one panel per sample.

        Raises:
            ValueError: If a sample cannot be rendered.
        """
        if samples.images is None:
            raise ValueError("the batch contains no inputs")
        images, config = _to_host(samples.images), self.config
        columns = (split_samples(_to_host(values), len(images)) for values in (samples.targets, samples.predictions))
        return [
            build_sample_panel(image, target, prediction, config.class_names, self.convert_image, config.score_thr)
            for image, target, prediction in zip(images, *columns, strict=True)
        ]


def _to_host(value: Any) -> Any:
    """Copy a batched value to the host."""
    # One transfer for the batch: a transfer per sample synchronizes with the device each time.
    if isinstance(value, Mapping):
        return {key: _to_host(item) for key, item in value.items()}
    return to_array(value) if hasattr(value, "detach") else value


def _format_accuracy(panels: list[Panel]) -> str:
    # The frame of a panel is the only place that stores whether the prediction is correct.
    outcomes = [panel.frame == CORRECT_COLOR for panel in panels if panel.frame is not None]
    return f"{sum(outcomes)} of {len(outcomes)} are right" if outcomes else ""
