"""Checkpoints for hookbus: periodic, best and last files, retention, bit-exact resume, and preemption."""

from hookbus_checkpoint.config import CheckpointConfig, PreemptionConfig
from hookbus_checkpoint.hook import CheckpointHook
from hookbus_checkpoint.preemption import PreemptionHook

__all__ = ["CheckpointConfig", "CheckpointHook", "PreemptionConfig", "PreemptionHook"]
