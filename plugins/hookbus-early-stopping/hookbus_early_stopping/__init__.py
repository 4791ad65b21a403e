"""Early stopping for hookbus: end the training when a metric stops improving, and restore the best weights."""

from hookbus_early_stopping.config import EarlyStoppingConfig
from hookbus_early_stopping.hook import EarlyStoppingHook
from hookbus_early_stopping.stopping_rule import Mode, StoppingRule

__all__ = ["EarlyStoppingConfig", "EarlyStoppingHook", "Mode", "StoppingRule"]
