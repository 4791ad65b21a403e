"""Gradient statistics for hookbus: mean, maximum and norm of every gradient as scalars and chart, with warnings."""

from hookbus_gradient_flow.config import GradientFlowConfig
from hookbus_gradient_flow.hook import GradientFlowHook

__all__ = ["GradientFlowConfig", "GradientFlowHook"]
