"""Hooks of hookbus in the Trainer of Hugging Face Transformers: `bus.attach(trainer)`."""

from hookbus_transformers.capabilities import CAPABILITIES

__all__ = ["CAPABILITIES"]
