"""View of the model of a run for callbacks of Keras: what they read and set of a model of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hookbus import Run
from hookbus.distributed import unwrap_model
from hookbus.errors import HookError


class ModelView:
    """Model of a run as callbacks of Keras see it.

    Args:
        run: The run.
        callback: Name of the callback, for the reason of a stop and for messages.

    Attributes:
        optimizer: View of the optimizer.
        history: Set by the callback `History`.
    """

    def __init__(self, run: Run, callback: str) -> None:
        self._run, self._callback = run, callback
        self.optimizer = RateView(run, callback)
        self.history: Any = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._callback}: the model of a run of hookbus has no attribute {name!r} for callbacks of Keras. It has "
            "stop_training, optimizer.learning_rate, get_weights and set_weights."
        )

    @property
    def stop_training(self) -> bool:
        """Whether the training is about to end. Set it to True to request the end."""
        return bool(self._run.should_stop)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        if value:
            self._run.request_stop(f"{self._callback} set stop_training")

    def get_weights(self) -> list[np.ndarray[Any, Any]]:
        """Return copies of the weights and buffers of the model."""
        return [tensor.detach().cpu().numpy().copy() for tensor in self._get_tensors()]

    @torch.no_grad()
    def set_weights(self, weights: list[np.ndarray[Any, Any]]) -> None:
        """Restore the weights and buffers that `get_weights` has returned.

        Args:
            weights: Arrays in the order of `get_weights`.
        """
        for tensor, value in zip(self._get_tensors(), weights, strict=True):
            tensor.copy_(torch.as_tensor(value))

    def _get_tensors(self) -> list[torch.Tensor]:
        assert self._run.model is not None  # checked before the run
        return list(unwrap_model(self._run.model).state_dict().values())


class RateView:
    """Optimizer of a run as callbacks of Keras see it: its learning rate.

    Args:
        run: The run.
        callback: Name of the callback, for messages.
    """

    def __init__(self, run: Run, callback: str) -> None:
        self._run, self._callback = run, callback

    @property
    def learning_rate(self) -> float:
        """Learning rate of all parameter groups.

        Raises:
            HookError: If there is more than one.
        """
        return next(iter(self._get_rates()))

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._get_rates()
        for optimizer in self._run.optimizers.values():
            for group in optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):  # a capturable optimizer reads this tensor
                    group["lr"].fill_(float(value))
                else:
                    group["lr"] = float(value)

    def _get_rates(self) -> set[float]:
        optimizers = self._run.optimizers.values()
        rates = {float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups}
        if len(rates) != 1:
            raise HookError(
                f"{self._callback}: a callback of Keras reads and sets one learning rate, got "
                f"{', '.join(map(str, sorted(rates))) or 'none'}. Use a scheduler of torch."
            )
        return rates
