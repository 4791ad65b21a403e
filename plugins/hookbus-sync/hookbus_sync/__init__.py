"""Hooks for hookbus that synchronize ranks: image sizes, sampler seeds, normalization layers, buffers, metrics."""

from hookbus_sync.config import SyncMetricsConfig, SyncRandomSizeConfig
from hookbus_sync.metrics import SyncMetricsHook
from hookbus_sync.random_size import SyncRandomSizeHook
from hookbus_sync.sampler_seed import DistSamplerSeedHook
from hookbus_sync.tensor_sync import SyncBuffersHook, SyncNormHook

__all__ = [
    "DistSamplerSeedHook",
    "SyncBuffersHook",
    "SyncMetricsConfig",
    "SyncMetricsHook",
    "SyncNormHook",
    "SyncRandomSizeConfig",
    "SyncRandomSizeHook",
]
