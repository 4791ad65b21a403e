"""Configuration of the SWA hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ImportString

from hookbus import HookConfig, resolve_import


def make_avg_fn(function: Any) -> Any:
    """Return a function of average, weight and number; the result of a function without required arguments.

    Raises:
        ValueError: If the function accepts neither three arguments nor none.
    """
    if function is None or _accepts(function, 3):
        return function
    if _accepts(function, 0) and callable(made := function()) and _accepts(made, 3):
        return made
    raise ValueError(
        f"should be a function (average, weight, num_averaged), got {function!r}. Pass such a function, or one that "
        "returns it, such as torch.optim.swa_utils.get_ema_avg_fn."
    )


def _accepts(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return count == 3
    return True


Rate = Annotated[float, Field(ge=0)]


class SWAConfig(HookConfig):
    """Learning rates, start, and weights of the average."""

    # An average that misses epochs is not that of the end of the training.
    frequency_error = "the average is updated after each epoch from `swa_epoch_start` on."
    when_error = "the average is updated after each epoch from `swa_epoch_start` on."
    effective_with = (("annealing_epochs", "swa_lrs"), ("annealing_strategy", "swa_lrs"))

    swa_lrs: Rate | list[Rate] | None = Field(
        default=None,
        description="Learning rate after the annealing, or a list with one value per parameter group; default: the "
        "learning rate is left unchanged.",
    )
    swa_epoch_start: Annotated[int, Field(ge=1)] | Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.8, description="First epoch of the average, from 1, or its share of the epochs of the run."
    )
    annealing_epochs: int = Field(default=10, ge=0, description="Length of the annealing in epochs; 0: none.")
    annealing_strategy: Literal["cos", "linear"] = Field(default="cos", description="Shape of the annealing.")
    avg_fn: Annotated[
        ImportString[Callable[..., Any]] | None, BeforeValidator(resolve_import), AfterValidator(make_avg_fn)
    ] = Field(
        default=None,
        description="Function (average, weight, num_averaged) that returns the new average of a tensor; default: equal "
        "weights.",
    )
    device: Literal["cpu"] | None = Field(
        default=None, description="Device of the averages: cpu; default: the device of the weights."
    )
