"""MLflow writer for hookbus: metrics, params, images, text and checkpoints."""

from hookbus_mlflow.config import MLflowConfig
from hookbus_mlflow.hook import MLflowHook

__all__ = ["MLflowConfig", "MLflowHook"]
