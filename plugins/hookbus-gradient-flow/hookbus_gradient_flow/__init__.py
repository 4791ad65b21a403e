"""Gradient flow for hookbus: mean, max and norm of every gradient, as numbers, as a chart, and as warnings."""

from hookbus_gradient_flow.config import GradientFlowConfig
from hookbus_gradient_flow.hook import GradientFlowHook

__all__ = ["GradientFlowConfig", "GradientFlowHook"]
