"""Averages of the weights for hookbus, exponential or equal: fused updates, bit-exact resume."""

from hookbus_ema.config import EMAConfig
from hookbus_ema.equal import EqualAverage
from hookbus_ema.exponential import AsyncMovingAverage, ExponentialMovingAverage
from hookbus_ema.hook import EMAHook
from hookbus_ema.swa import SWAHook
from hookbus_ema.swa_config import SWAConfig

__all__ = [
    "AsyncMovingAverage",
    "EMAConfig",
    "EMAHook",
    "EqualAverage",
    "ExponentialMovingAverage",
    "SWAConfig",
    "SWAHook",
]
