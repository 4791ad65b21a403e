"""The `feature_map` hook: outputs of model layers for one sample."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from hookbus import Run, every, hookimpl
from hookbus.distributed import unwrap_model
from hookbus.errors import HookError
from hookbus_visualization.base import ImageHook
from hookbus_visualization.config import FeatureMapConfig
from hookbus_visualization.features import compute_feature_maps, render_feature_maps, select_layers
from hookbus_visualization.samples import describe_shapes

DEFAULT_FREQUENCY = 100


class FeatureMapHook(ImageHook):
    """Hook that renders the feature maps of one sample: one image per layer with one panel per channel.

    Each record requires one additional forward pass in evaluation mode, without compiled code, on the samples up to the
    selected one. Between records the hook does nothing, and no module hook is registered.
    """

    Config = FeatureMapConfig
    config: FeatureMapConfig

    def check(self, run: Run) -> None:
        """Check that the model has the configured layers.

        Raises:
            ConfigError: If a layer does not exist, or another hook has the same `out_dir`.
        """
        super().check(run)
        if run.model is not None:
            select_layers(unwrap_model(run.model), self.config.layers)
        self._last_step = -1

    @hookimpl(when=lambda config: every(config.frequency or DEFAULT_FREQUENCY))
    def after_train_iter(self, run: Run, batch: Any, outputs: Any) -> None:
        """Render the feature maps of the selected sample."""
        model = self.get_callable_model(run)
        # With gradient accumulation several iterations share a step, and a tag has at most one image per step.
        if model is None or self._last_step == run.steps_done:
            return
        self._last_step = run.steps_done
        inputs = self._get_inputs(run, batch, outputs)
        layers = compute_feature_maps(model, inputs, self.config.layers, self.config.max_features, sample=-1)
        with self.warn_of_anomalies(run):
            rendered = render_feature_maps(layers)
        for path, panels in rendered.items():
            self.publish(run, "train", path, panels)
        self._warn_unused_layers(run, model, layers)

    def _warn_unused_layers(self, run: Run, model: nn.Module, rendered: Collection[str]) -> None:
        """Warn about configured layers without feature maps."""
        configured = select_layers(unwrap_model(model), self.config.layers) if self.config.layers else {}
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
