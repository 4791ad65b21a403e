"""Early stopping for hookbus: ends a training that no longer improves, and brings its best weights back."""

from hookbus_early_stopping.config import EarlyStoppingConfig
from hookbus_early_stopping.decision import Decision, Mode
from hookbus_early_stopping.hook import EarlyStoppingHook

__all__ = ["Decision", "EarlyStoppingConfig", "EarlyStoppingHook", "Mode"]
