"""Early stopping for hookbus: end the training when a metric stops improving, and restore the best weights."""

from hookbus_early_stopping.config import EarlyStoppingConfig
from hookbus_early_stopping.decision import StoppingRule, Mode
from hookbus_early_stopping.hook import EarlyStoppingHook

__all__ = ["StoppingRule", "EarlyStoppingConfig", "EarlyStoppingHook", "Mode"]
