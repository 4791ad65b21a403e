"""Metrics of a run: windows, means, results and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus.metrics.direction import ambiguous_direction_message as ambiguous_direction_message
    from hookbus.metrics.direction import infer_direction as infer_direction
    from hookbus.metrics.flop_counter import FlopCounter as FlopCounter
    from hookbus.metrics.peak_flops import get_peak_flops as get_peak_flops
    from hookbus.metrics.results import Metrics as Metrics
    from hookbus.metrics.results import is_training_metric as is_training_metric
    from hookbus.metrics.results import resolve_metric_name as resolve_metric_name
    from hookbus.metrics.windows import Window as Window

_MODULES = map_names(
    {
        "hookbus.metrics.direction": "ambiguous_direction_message infer_direction",
        "hookbus.metrics.flop_counter": "FlopCounter",
        "hookbus.metrics.peak_flops": "get_peak_flops",
        "hookbus.metrics.results": "Metrics is_training_metric resolve_metric_name",
        "hookbus.metrics.windows": "Window",
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
