"""Metrics of a run: windows, means, results and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus.metrics.direction import ambiguous_direction_message as ambiguous_direction_message
    from hookbus.metrics.direction import infer_direction as infer_direction
    from hookbus.metrics.results import Metrics as Metrics
    from hookbus.metrics.results import resolve_metric_name as resolve_metric_name
    from hookbus.metrics.windows import Window as Window

_MODULES = {
    "Metrics": "hookbus.metrics.results",
    "Window": "hookbus.metrics.windows",
    "ambiguous_direction_message": "hookbus.metrics.direction",
    "infer_direction": "hookbus.metrics.direction",
    "resolve_metric_name": "hookbus.metrics.results",
}
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
