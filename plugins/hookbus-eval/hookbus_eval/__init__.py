"""Evaluation for hookbus: when to validate, on which data sets, and what to measure there."""

from hookbus_eval.config import EvalConfig
from hookbus_eval.hook import DistEvalHook, EvalHook

__all__ = ["DistEvalHook", "EvalConfig", "EvalHook"]
