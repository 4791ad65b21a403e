"""Hooks of hookbus in engines of PyTorch-Ignite."""

from hookbus_ignite.capabilities import CAPABILITIES

__all__ = ["CAPABILITIES"]
