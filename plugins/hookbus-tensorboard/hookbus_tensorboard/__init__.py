"""TensorBoard: numbers, pictures, distributions, texts, graph and hparams of a training."""

from hookbus_tensorboard.config import TensorBoardConfig
from hookbus_tensorboard.hook import TensorBoardHook

__all__ = ["TensorBoardConfig", "TensorBoardHook"]
