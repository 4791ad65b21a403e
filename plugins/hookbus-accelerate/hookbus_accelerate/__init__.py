"""Hooks of hookbus in training loops that use Accelerate."""

from hookbus_accelerate.capabilities import CAPABILITIES

__all__ = ["CAPABILITIES"]
