"""Evaluation for hookbus: when to validate, on which datasets, and with which metrics."""

from hookbus_eval.config import EvalConfig
from hookbus_eval.hook import DistEvalHook, EvalHook

__all__ = ["DistEvalHook", "EvalConfig", "EvalHook"]
