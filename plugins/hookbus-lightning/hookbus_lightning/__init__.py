"""Hooks of hookbus in the Trainer of Lightning and in loops with Fabric: `bus.attach(trainer)`."""

from hookbus_lightning.capabilities import FABRIC, TRAINER

__all__ = ["FABRIC", "TRAINER"]
