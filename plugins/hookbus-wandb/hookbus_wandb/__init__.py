"""Weights & Biases writer for hookbus: scalars, images, histograms, text, configuration and checkpoints."""

from hookbus_wandb.config import WandbConfig
from hookbus_wandb.hook import WandbHook

__all__ = ["WandbConfig", "WandbHook"]
