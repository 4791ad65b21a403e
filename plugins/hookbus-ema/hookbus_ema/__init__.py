"""Exponential moving average of the weights for hookbus: one fused update per optimizer step, bit-exact resume."""

from hookbus_ema.config import EMAConfig
from hookbus_ema.exponential import AsyncMovingAverage, ExponentialMovingAverage
from hookbus_ema.hook import EMAHook

__all__ = ["AsyncMovingAverage", "EMAConfig", "EMAHook", "ExponentialMovingAverage"]
