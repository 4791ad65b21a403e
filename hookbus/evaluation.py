"""Evaluation of a model in hooks and custom loops: metrics, evaluation mode and RNG isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, read_public_names

# The public names, which are imported on their first use.
if TYPE_CHECKING:
    from hookbus._training.eval_metrics import build_metrics as build_metrics
    from hookbus._training.evaluation import eval_mode as eval_mode
    from hookbus._training.evaluation import evaluate as evaluate
    from hookbus._training.evaluation import named_loaders as named_loaders
    from hookbus._training.evaluation import preserve_training_modes as preserve_training_modes
    from hookbus.data.rng import isolate_rng as isolate_rng

_MODULES = read_public_names(__name__)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
