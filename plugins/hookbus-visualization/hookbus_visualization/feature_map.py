"""The feature map hook: what the layers of a model make of one sample."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from hookbus import Run, every, hookimpl
from hookbus.errors import HookError
from hookbus.model.wrappers import unwrapped
from hookbus_visualization.base import PictureHook
from hookbus_visualization.config import FeatureMapConfig
from hookbus_visualization.features import feature_maps, layers_of, pictures_of
from hookbus_visualization.panel import Panel
from hookbus_visualization.seen import shapes

__all__ = ["FeatureMapHook"]

FREQUENCY = 100


class FeatureMapHook(PictureHook):
    """Draws what layers make of a sample of the batch: a picture for each layer, with a panel for each channel.

    For each record the model makes one more forward pass with the samples up to that one, as in a validation and
    outside of anything compiled. Between records nothing is done, and no module hook is in the model.
    """

    Config = FeatureMapConfig
    config: FeatureMapConfig

    def check(self, run: Run) -> None:
        """See that the layers are in the model."""
        if run.model is not None:
            layers_of(unwrapped(run.model), self.config.layers)
        self._drawn_at = -1

    @hookimpl(when=lambda config: every(config.frequency or FREQUENCY))
    def after_train_iter(self, run: Run, batch: Any, outputs: Any) -> None:
        """Draw."""
        model = self.model_of(run)
        if model is None or self._drawn_at == run.steps_done:  # a record has one picture per update
            return
        self._drawn_at = run.steps_done
        inputs = self._inputs(run, batch, outputs)
        found = feature_maps(model, inputs, self.config.layers, self.config.max_features, sample=-1)
        for path, maps in found.items():
            panels = [Panel(each, f"channel {i}") for i, each in enumerate(pictures_of(maps))]
            self.deliver(run, "train", path, panels)
        self._tell_unused(run, model, found)

    def _tell_unused(self, run: Run, model: nn.Module, found: Collection[str]) -> None:
        """Say which layers were named and gave nothing."""
        named = layers_of(unwrapped(model), self.config.layers) if self.config.layers else {}
        if unused := [path for path in named if path not in found]:
            self.say_once(run, f"nothing is drawn of layers {unused}: not used by the model, or without samples.")

    def _inputs(self, run: Run, batch: Any, outputs: Any) -> Any:
        """The samples up to the one that is looked at, as the model takes them."""
        inputs = self.seen(run, batch, outputs, self.config.sample_batch_idx + 1).inputs
        shape = self.config.input_shape
        if shape is None:
            return inputs
        if not isinstance(inputs, Tensor) or inputs[0].numel() != math.prod(shape):
            raise HookError(
                f"hook {self.name!r}: input_shape: {list(shape)} is no shape of a sample of these inputs, which are "
                f"{shapes(inputs)}. Give the shape in which the model takes one sample, without the batch."
            )
        return inputs.reshape(-1, *shape)
