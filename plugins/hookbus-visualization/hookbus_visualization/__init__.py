"""Pictures for hookbus: predictions, boxes, masks, feature maps, attention, class activation, gradients."""

from hookbus_visualization.base import PictureHook, SampleHook
from hookbus_visualization.config import PictureConfig, SampleConfig, VisualizationConfig
from hookbus_visualization.visualization import VisualizationHook

__all__ = ["PictureConfig", "PictureHook", "SampleConfig", "SampleHook", "VisualizationConfig", "VisualizationHook"]
