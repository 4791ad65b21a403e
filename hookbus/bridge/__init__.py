"""Hooks in other trainers: what a trainer offers, and the object that drives a run for it.

`capabilities` of a host and the protocol `Host` are defined with the run. `bridge` is the base class of the packages
that connect a trainer, `loop_bridge` that of libraries whose loop is the user's, and `discovery` finds them by the
type of the trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._run.host import Capabilities as Capabilities
    from hookbus._run.host import Host as Host
    from hookbus.bridge.bridge import Bridge as Bridge
    from hookbus.bridge.loop_bridge import LoopBridge as LoopBridge

_MODULES = map_names(
    {
        "hookbus._run.host": "Capabilities Host",
        "hookbus.bridge.bridge": "Bridge",
        "hookbus.bridge.loop_bridge": "LoopBridge",
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
