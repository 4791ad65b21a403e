"""Missing loss of a training, as far as it is known without a batch."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from hookbus.distributed.unwrap import unwrap_model
from hookbus.trainer.named_objects import get_implemented

if TYPE_CHECKING:
    from torch import nn

    from hookbus.trainer.setup import TrainerSetup


def find_loss_problem(trainer: TrainerSetup) -> str:
    """Return why a training cannot compute a loss: no loss function, and a model that takes no targets; "" if it may.

    Args:
        trainer: Trainer.
    """
    steps = trainer.steps
    if steps.loss_fn is not None or steps.step_fn is not None or trainer.model_names:
        return ""
    # Hooks may compute the loss, or replace the batch.
    if not {"train_step", "before_train_iter"}.isdisjoint(get_implemented(trainer)):
        return ""
    model, count = unwrap_model(trainer.model), _count_elements(trainer.train_loader)
    if count is None or _accepts(model, count):
        return ""
    return (
        f"loss: missing, because {type(model).__name__}.forward cannot be called with the {count} elements of a batch, "
        "got None. Pass `loss_fn` to the Trainer (`loss:` in a run file), or pass `step_fn`."
    )


def _count_elements(loader: Any) -> int | None:
    """Return the number of elements of each batch, None if it is known only when a batch is read."""
    if not isinstance(loader, DataLoader) or loader.batch_size is None or loader.collate_fn is not default_collate:
        return None
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    is_known = isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__
    return len(dataset.tensors) if is_known else None


def _accepts(model: nn.Module, count: int) -> bool:
    """Return whether a model may be called with a number of positional arguments."""
    if model._forward_pre_hooks:  # they may replace the arguments
        return True
    try:
        inspect.signature(model.forward).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return True
    return True
