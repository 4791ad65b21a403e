"""Runtime hooks for hookbus: environment, memory, garbage collection, time limits, mean teacher."""

from hookbus_runtime.config import (
    EmptyCacheConfig,
    GarbageCollectionConfig,
    MeanTeacherConfig,
    OutOfMemoryConfig,
    TimeLimitConfig,
)
from hookbus_runtime.mean_teacher import MeanTeacherHook
from hookbus_runtime.memory import EmptyCacheHook, GarbageCollectionHook
from hookbus_runtime.out_of_memory import OutOfMemoryHook
from hookbus_runtime.runtime_info import RuntimeInfoHook
from hookbus_runtime.time_limit import TimeLimitHook

__all__ = [
    "EmptyCacheConfig",
    "EmptyCacheHook",
    "GarbageCollectionConfig",
    "GarbageCollectionHook",
    "MeanTeacherConfig",
    "MeanTeacherHook",
    "OutOfMemoryConfig",
    "OutOfMemoryHook",
    "RuntimeInfoHook",
    "TimeLimitConfig",
    "TimeLimitHook",
]
