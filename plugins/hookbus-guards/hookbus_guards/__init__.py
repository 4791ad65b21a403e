"""Guards for hookbus: invalid losses, class mismatches, and configuration errors at the start of a training."""

from hookbus_guards.config import CheckInvalidLossConfig, NumClassCheckConfig, StartupCheckConfig
from hookbus_guards.invalid_loss import CheckInvalidLossHook
from hookbus_guards.startup import NumClassCheckHook, StartupCheckHook

__all__ = [
    "CheckInvalidLossConfig",
    "CheckInvalidLossHook",
    "NumClassCheckConfig",
    "NumClassCheckHook",
    "StartupCheckConfig",
    "StartupCheckHook",
]
