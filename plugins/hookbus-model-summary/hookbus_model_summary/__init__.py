"""Model summary for hookbus: parameters, shapes and FLOPs of each module."""

from hookbus_model_summary.config import ModelSummaryConfig
from hookbus_model_summary.hook import ModelSummaryHook
from hookbus_model_summary.summary import ModelSummary, ModuleSummary, summarize

__all__ = ["ModelSummary", "ModelSummaryConfig", "ModelSummaryHook", "ModuleSummary", "summarize"]
