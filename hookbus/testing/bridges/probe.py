"""A plugin that records what the points of a run provide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookbus._events.markers import hookimpl
from hookbus._run.host import GRADIENT_POINTS
from hookbus._run.run import Run
from hookbus._utils.values import iter_leaves
from hookbus.distributed import named_parameters
from hookbus.lifecycle import POINTS

VALIDATION_POINTS = ("before_val", "before_val_iter", "after_val_iter", "after_val")

WEIGHT_POINTS = ("before_train_iter", *VALIDATION_POINTS)
"""Points at which the weights in the model are compared with the averaged ones."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a point provided when it was emitted.

    Attributes:
        point: Name of the point.
        iteration: Index of the current iteration.
        counts: Completed epochs, iterations, steps and samples.
        batch: Tensors in the batch; None without a batch.
        has_outputs: Whether there are outputs.
        loss: Value of the loss; None without one.
        gradient: Norm of the gradients; None if there are none, or at a point that has none in any loop.
        is_averaged: Whether the model contains the averaged weights; None at other points.
    """

    point: str
    iteration: int
    counts: tuple[int, int, int, int]
    batch: Sequence[Tensor] | None
    has_outputs: bool
    loss: float | None
    gradient: float | None
    is_averaged: bool | None


class Probe:
    """Plugin that records a `Moment` of each event, except of those that log something.

    Attributes:
        moments: The recorded events, in order.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        for point in POINTS:
            if not point.startswith("log_"):
                setattr(self, point, hookimpl(_make_listener(point, self.moments)))

    @property
    def points(self) -> list[str]:
        """Names of the emitted points, in order."""
        return [moment.point for moment in self.moments]

    def select(self, *points: str) -> Iterator[Moment]:
        """Yield the events of some points.

        Args:
            points: Names of the points.
        """
        return (moment for moment in self.moments if moment.point in points)


def _make_listener(point: str, moments: list[Moment]) -> Callable[..., None]:
    def listener(run: Run, **arguments: Any) -> None:
        moments.append(_observe(run, point, arguments))

    return listener


def _observe(run: Run, point: str, arguments: Mapping[str, Any]) -> Moment:
    batch, loss = arguments.get("batch"), arguments.get("loss")
    return Moment(
        point,
        run.iter,
        (run.epochs_done, run.iters_done, run.steps_done, run.samples_done),
        None if batch is None else _copy_tensors(batch),
        arguments.get("outputs") is not None,
        None if loss is None else float(torch.as_tensor(loss).detach()),
        _measure_gradients(run) if point in GRADIENT_POINTS else None,
        _is_averaged(run) if point in WEIGHT_POINTS else None,
    )


def _copy_tensors(batch: Any) -> list[Tensor]:
    return [leaf.detach().clone() for _, leaf in iter_leaves(batch) if isinstance(leaf, Tensor)]


def _measure_gradients(run: Run) -> float | None:
    """Return the norm of the gradients of the model; None if no parameter has one that is not zero."""
    parameters = [] if run.model is None else [*run.model.parameters()]
    norms = [p.grad.detach().double().norm() for p in parameters if p.grad is not None]
    norm = float(torch.stack(norms).norm()) if norms else 0.0
    return norm if norm != 0 else None


def _is_averaged(run: Run) -> bool | None:
    """Return whether the model contains the averaged weights; None if there are none."""
    averages = run.weights.averaged()
    if run.model is None or not averages:
        return None
    parameters = dict(named_parameters(run.model))
    return all(torch.equal(tensor, averages[name]) for name, tensor in parameters.items() if name in averages)
