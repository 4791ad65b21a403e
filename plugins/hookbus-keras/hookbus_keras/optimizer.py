"""View of an optimizer of Keras for the run: its parameters, learning rate, state, and number of updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras


class OptimizerView:
    """What a run reads from an optimizer, of an optimizer of Keras. Keras itself calls the optimizer.

    Args:
        optimizer: Optimizer of Keras, whose variables exist.
        variables: Trainable variables of the model.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self._optimizer = optimizer
        self._parameters = [variable.value for variable in variables]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group with the parameters and the current learning rate, a number or a tensor."""
        return [{"params": self._parameters, "lr": get_learning_rate(self._optimizer)}]

    def step(self) -> None:
        """Raise: only `fit` updates the weights.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("The optimizer of a Keras model is called by `fit`, and not by hooks.")

    def state_dict(self) -> dict[str, Any]:
        """Return the variables, in the order of Keras: their names depend on how many optimizers were built before."""
        return {"variables": [variable.value.detach() for variable in self._optimizer.variables]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`.

        Raises:
            ValueError: If it has other variables than the optimizer.
        """
        own = self._optimizer.variables
        shapes = [tuple(value.shape) for value in state["variables"]]
        if shapes != [tuple(variable.shape) for variable in own]:
            raise ValueError(
                f"the state has {len(shapes)} variables of the shapes {shapes}, and the optimizer "
                f"{self._optimizer.name} has {len(own)} of other shapes. Compile the model with the same optimizer."
            )
        for variable, value in zip(own, state["variables"], strict=True):
            variable.assign(value)


class UpdateCounter:
    """Determine which calls of `optimizer.apply` update the weights, without reading a variable of the device.

    Args:
        optimizer: Optimizer of Keras, whose variables exist.
    """

    def __init__(self, optimizer: Any) -> None:
        self._interval = optimizer.gradient_accumulation_steps or 1
        # `iterations` counts updates; this variable counts calls, and Keras compares it in the same way.
        self._calls = int(optimizer._iterations.value) if self._interval > 1 else 0

    def advance(self) -> bool:
        """Count a call. Return whether it updates the weights, instead of accumulating gradients."""
        self._calls += 1
        return self._calls % self._interval == 0


def get_inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that updates the weights, of one that scales the loss; otherwise the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def get_learning_rate(optimizer: Any) -> Any:
    """Return the current learning rate, a number or a tensor. Does not synchronize with the device."""
    rate = optimizer.learning_rate
    return rate.value.detach() if isinstance(rate, keras.Variable) else rate
