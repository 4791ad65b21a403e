"""The hooks `visualization`, for samples and the internals of the model, and `feature_map`, for the latter only."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from hookbus import Needs, Run, every, hookimpl
from hookbus.distributed import unwrap_model
from hookbus.errors import HookError
from hookbus_visualization.attribution import check_cam
from hookbus_visualization.base import ImageHook, SampleHook
from hookbus_visualization.config import FeatureMapConfig, VisualizationConfig
from hookbus_visualization.features import compute_feature_maps, render_feature_maps, select_layers
from hookbus_visualization.images import is_image, to_array
from hookbus_visualization.interpretability import ModelInspector
from hookbus_visualization.panel import CORRECT_COLOR, Panel
from hookbus_visualization.panels import build_sample_panel
from hookbus_visualization.samples import Samples, describe_shapes, split_samples

DEFAULT_FREQUENCY = 100
"""Interval of the `feature_map` hook in iterations."""

LAYER_CONTENT = frozenset({"feature_maps", "attention", "cam"})
"""Content that is read from layers of the model."""


class VisualizationHook(SampleHook):
    """Hook that renders samples with targets and predictions: classes, numbers, images, tokens, boxes, label maps.

    If the outputs contain no predictions, such as in a loop whose step returns only the loss, the model is called in
    evaluation mode.
    """

    Config = VisualizationConfig
    config: VisualizationConfig

    @property
    def needs(self) -> Needs:
        """The batch, and modules for content that is read from layers."""
        return Needs(batch=True, modules=not LAYER_CONTENT.isdisjoint(self.config.content))

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
        targets = split_samples(_to_host(samples.targets), len(images))
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


class FeatureMapHook(ImageHook):
    """Hook that renders the feature maps of one sample: one image per layer with one panel per channel.

    Each record requires one additional forward pass in evaluation mode, without compiled code, on the samples up to the
    selected one. Between records the hook does nothing, and no module hook is registered.
    """

    Config = FeatureMapConfig
    needs = Needs(batch=True, modules=True)
    config: FeatureMapConfig

    def check(self, run: Run) -> None:
        """Check that the model has the configured layers.

        Raises:
            ConfigError: If a layer does not exist, or another hook has the same `out_dir`.
        """
        super().check(run)
        if run.model is not None:
            select_layers(unwrap_model(run.model), self.config.layers)

    @hookimpl(when=lambda config: every(config.frequency or DEFAULT_FREQUENCY))
    def after_train_iter(self, run: Run, batch: Any, outputs: Any) -> None:
        """Render the feature maps of the selected sample."""
        model = self.get_callable_model(run)
        if model is None or not self._is_first_at_step(run, "train"):
            return
        inputs = self._get_inputs(run, batch, outputs)
        layers = compute_feature_maps(model, inputs, self.config.layers, self.config.max_features, sample=-1)
        with self.warn_of_anomalies(run):
            rendered = render_feature_maps(layers)
        for path, panels in rendered.items():
            self.publish(run, "train", path, panels)
        self._warn_unused_layers(run, model, layers)

    def _warn_unused_layers(self, run: Run, model: nn.Module, rendered: Collection[str]) -> None:
        """Warn about configured layers without feature maps."""
        configured = self.config.layers and select_layers(unwrap_model(model), self.config.layers)
        if unused := [path for path in configured if path not in rendered]:
            self.warn_once(
                run, f"no feature maps of the layers {unused}: the model does not use them, or they return no samples."
            )

    def _get_inputs(self, run: Run, batch: Any, outputs: Any) -> Any:
        """Return the samples up to the selected one, in the shape of model inputs."""
        # The last of these samples is the selected one, or the last one of a smaller batch: index -1 denotes both.
        inputs = self.first_samples(run, batch, outputs, self.config.sample_batch_idx + 1).inputs
        shape = self.config.input_shape
        if shape is None:
            return inputs
        if not isinstance(inputs, Tensor) or inputs[0].numel() != math.prod(shape):
            raise HookError(
                f"hook {self.name!r}: `input_shape` must have the number of elements of a sample, got {list(shape)} "
                f"for inputs {describe_shapes(inputs)}. Set the shape of one model input without the batch dimension."
            )
        return inputs.reshape(-1, *shape)
