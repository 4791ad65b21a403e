"""Schedules for hookbus: learning rate, momentum, data pipelines, freezing and gradient accumulation."""

from hookbus_schedule.accumulation import AccumulationHook
from hookbus_schedule.config import (
    AccumulationConfig,
    FreezeConfig,
    ParamSchedulerConfig,
    PipelineSwitchConfig,
    SchedulerConfig,
    YOLOXLrUpdaterConfig,
    YOLOXModeSwitchConfig,
)
from hookbus_schedule.data_switches import PipelineSwitchHook, YOLOXModeSwitchHook
from hookbus_schedule.epoch_info import SetEpochInfoHook
from hookbus_schedule.freeze import FreezeHook
from hookbus_schedule.param_scheduler import ParamSchedulerHook
from hookbus_schedule.yolox_lr import YOLOXLrUpdaterHook

__all__ = [
    "AccumulationConfig",
    "AccumulationHook",
    "FreezeConfig",
    "FreezeHook",
    "ParamSchedulerConfig",
    "ParamSchedulerHook",
    "PipelineSwitchConfig",
    "PipelineSwitchHook",
    "SchedulerConfig",
    "SetEpochInfoHook",
    "YOLOXLrUpdaterConfig",
    "YOLOXLrUpdaterHook",
    "YOLOXModeSwitchConfig",
    "YOLOXModeSwitchHook",
]
