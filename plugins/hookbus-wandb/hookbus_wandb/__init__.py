"""Weights & Biases: numbers, pictures, distributions, texts and checkpoints of a training."""

from hookbus_wandb.config import WandbConfig
from hookbus_wandb.hook import WandbHook

__all__ = ["WandbConfig", "WandbHook"]
