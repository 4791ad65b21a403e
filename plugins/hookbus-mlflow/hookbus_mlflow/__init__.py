"""MLflow: numbers, params, pictures and checkpoints of a training."""

from hookbus_mlflow.config import MLflowConfig
from hookbus_mlflow.hook import MLflowHook

__all__ = ["MLflowConfig", "MLflowHook"]
