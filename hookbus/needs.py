"""What a hook needs from the loop, compared with what another trainer offers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from hookbus.errors import HookError, suggest_names
from hookbus.lifecycle import POINTS

HostRequest = Literal["stop", "stop_epoch", "save", "validation", "skip"]

REQUESTS: Mapping[str, str] = {
    "stop": "stop",
    "stop_epoch": "stop of the epoch",
    "save": "checkpoint",
    "validation": "validation",
    "skip": "skipped iteration",
}
"""Name of each request in messages."""


@dataclass(frozen=True, slots=True, repr=False)
class Needs:
    """What a hook needs from the loop. Everything that is not listed may be missing; the hook then works without it.

    Every trainer provides the points of a run, of its training, and `after_train_iter`. Validations, skipped iterations
    and accumulation are declared by `Hook.requires_validation`, `Hook.schedules_validation`, `Hook.skips_iterations`
    and `Hook.schedules_accumulation`.

    Args:
        points: Points that must be emitted. A tuple of points is satisfied by any one of them.
        requests: Requests that must be carried out: "stop", "stop_epoch", "save", "skip".
        actions: Actions, such as `train_step`, that the loop must call through the bus.
        gradients: Points at one of which the gradients of the model must be available.
        batch: Whether the batch must be passed to the points of iterations.
        outputs: Whether the outputs of the model must be passed to `after_train_iter` or `after_val_iter`.
        loss: Whether the loss of each training iteration must be passed, as a tensor or a number.
        modules: Whether the layers of the model must be modules of `torch.nn`.
        data: Whether the hook modifies the dataset or the sampler of the training loader.
        optimizer: Whether the optimizer must be one of `torch.optim`.

    Raises:
        HookError: If a point or a request does not exist.
    """

    points: Collection[str | tuple[str, ...]] = ()
    requests: Collection[str] = ()
    actions: Collection[str] = ()
    gradients: Collection[str] = ()
    batch: bool = False
    outputs: bool = False
    loss: bool = False
    modules: bool = False
    data: bool = False
    optimizer: bool = False

    def __post_init__(self) -> None:
        """Check the names, so that a typo does not disable a check."""
        _check_names("points", self.points, POINTS)
        _check_names("gradients", self.gradients, POINTS)
        _check_names("requests", self.requests, REQUESTS)

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return f"Needs({', '.join(f'{name}={value!r}' for name, value in values.items() if value)})"


def as_alternatives(need: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the points of which one satisfies an entry of `Needs.points`."""
    return (need,) if isinstance(need, str) else need


def _check_names(field: str, needs: Collection[str | tuple[str, ...]], known: Collection[str]) -> None:
    # A string would be a collection of letters.
    if isinstance(needs, str):
        raise HookError(f"Needs: {field} should be a tuple of names, got {needs!r}. Pass ({needs!r},).")
    for name in (name for need in needs for name in as_alternatives(need) if name not in known):
        raise HookError(f"Needs: {field} contains an unknown name, got {name!r}.{suggest_names(name, known)}")
