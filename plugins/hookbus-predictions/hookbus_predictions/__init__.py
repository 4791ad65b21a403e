"""Predictions hook for hookbus: files with predictions and the indices of the samples."""

from hookbus_predictions.config import PredictionsConfig
from hookbus_predictions.hook import PredictionsHook

__all__ = ["PredictionsConfig", "PredictionsHook"]
