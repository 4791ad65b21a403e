"""Guards for hookbus: invalid losses, wrong numbers of classes, and what else wastes an hour of training."""

from hookbus_guards.config import CheckInvalidLossConfig, NumClassCheckConfig, StartupCheckConfig
from hookbus_guards.invalid_loss import CheckInvalidLossHook
from hookbus_guards.num_class import NumClassCheckHook
from hookbus_guards.startup import StartupCheckHook

__all__ = [
    "CheckInvalidLossConfig",
    "CheckInvalidLossHook",
    "NumClassCheckConfig",
    "NumClassCheckHook",
    "StartupCheckConfig",
    "StartupCheckHook",
]
