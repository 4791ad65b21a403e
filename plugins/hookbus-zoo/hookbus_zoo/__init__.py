"""Example models and datasets for hookbus run files."""

from hookbus_zoo.data import cifar10, digits
from hookbus_zoo.models import cnn, mlp

__all__ = ["cifar10", "cnn", "digits", "mlp"]
