"""Image hooks for hookbus: predictions, boxes, masks, feature maps, attention, class activation, gradients."""

from hookbus_visualization.annotation_hooks import DetVisualizationHook, SegVisualizationHook
from hookbus_visualization.base import ImageHook, SampleHook
from hookbus_visualization.config import (
    DetVisualizationConfig,
    FeatureMapConfig,
    ImageConfig,
    SampleConfig,
    SegVisualizationConfig,
    VisualizationConfig,
)
from hookbus_visualization.visualization import FeatureMapHook, VisualizationHook

__all__ = [
    "DetVisualizationConfig",
    "DetVisualizationHook",
    "FeatureMapConfig",
    "FeatureMapHook",
    "ImageConfig",
    "ImageHook",
    "SampleConfig",
    "SampleHook",
    "SegVisualizationConfig",
    "SegVisualizationHook",
    "VisualizationConfig",
    "VisualizationHook",
]
