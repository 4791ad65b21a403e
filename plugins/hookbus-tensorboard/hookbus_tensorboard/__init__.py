"""TensorBoard writer for hookbus: scalars, images, histograms, text, the model graph and hparams."""

from hookbus_tensorboard.config import TensorBoardConfig
from hookbus_tensorboard.hook import TensorBoardHook

__all__ = ["TensorBoardConfig", "TensorBoardHook"]
