"""Evaluation of a model in hooks and custom loops: metrics, outputs, evaluation mode and RNG isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._training.eval_metrics import build_metrics as build_metrics
    from hookbus._training.evaluation import eval_mode as eval_mode
    from hookbus._training.evaluation import evaluate as evaluate
    from hookbus._training.evaluation import named_loaders as named_loaders
    from hookbus._training.evaluation import preserve_training_modes as preserve_training_modes
    from hookbus._training.isolation import call_model as call_model
    from hookbus._training.isolation import copy_tensors as copy_tensors
    from hookbus._training.isolation import isolated_forward as isolated_forward
    from hookbus._training.predictions import count_samples as count_samples
    from hookbus._training.predictions import split_samples as split_samples
    from hookbus.data.rng import isolate_rng as isolate_rng

_MODULES = map_names(
    {
        "hookbus._training.eval_metrics": "build_metrics",
        "hookbus._training.evaluation": "eval_mode evaluate named_loaders preserve_training_modes",
        "hookbus._training.isolation": "call_model copy_tensors isolated_forward",
        "hookbus._training.predictions": "count_samples split_samples",
        "hookbus.data.rng": "isolate_rng",
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
