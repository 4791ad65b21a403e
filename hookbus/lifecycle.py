"""Points of a run, one method each.

`Lifecycle` is the only list of points. The pluggy specs, the typed `emit`, the tables in the documentation and
`hookbus points` are derived from it. A hook listens at a point by defining a method of the same name that takes any of
the arguments, in any order. `run` is available at every point.

An *epoch* is one pass over the training loader, an *iteration* is one micro-batch, and a *step* is one optimizer step.
`epoch` and `batch_idx` are indices from 0. `step` is the number of completed optimizer steps, the axis of all logged
values. The clock advances immediately before an `after_*` event.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from hookbus.errors import PointError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer

    from hookbus.metrics import Metrics
    from hookbus.run import Mode

__all__ = ["ALIASES", "POINTS", "SPELLINGS", "Lifecycle", "Point", "Unit", "check_point", "describe", "per", "point_of"]

Unit = Literal["iter", "batch", "step", "epoch", "sample", "seconds"]
F = TypeVar("F", bound=Callable[..., Any])

ALIASES: Mapping[str, str] = {
    "before_training": "before_train",
    "after_training": "after_train",
    "before_step": "before_train_iter",
    "after_step": "after_train_iter",
}
"""Aliases of points, resolved at registration."""

SPELLINGS: Mapping[str, str] = {"runner": "run", "data_batch": "batch"}
"""Aliases of arguments: a listener may name `run` also `runner`."""


@dataclass(frozen=True, slots=True)
class Point:
    """A named moment of a run.

    Attributes:
        name: Name of the method in `Lifecycle`.
        args: Arguments that listeners may take in addition to `run`, in order.
        unit: Default unit of `when=` at this point, None if schedules are not supported.
        doc: Description as Markdown.
        types: Annotation of each argument, as written in the source.
    """

    name: str
    args: tuple[str, ...]
    unit: Unit | None
    doc: str
    types: tuple[str, ...]

    @property
    def reverse(self) -> bool:
        """Whether the nested order runs by descending priority at this point."""
        return self.name.startswith("after_") or self.name == "cleanup"

    @property
    def signature(self) -> str:
        """Signature of a listener that takes all arguments: `after_train_iter(run, step, ...)`."""
        return f"{self.name}({', '.join(('run', *self.args))})"


def per(unit: Unit) -> Callable[[F], F]:
    """Mark a point as counted in a unit, so that it supports schedules such as `when=every(n)`."""

    def mark(method: F) -> F:
        method.unit = unit  # type: ignore[attr-defined]
        return method

    return mark


class Lifecycle:
    """Points of a run, in the order in which training emits them."""

    def before_run(self, mode: Mode | None = None) -> None:
        """Start of a call of fit, validate or test; `mode` is "train", "val" or "test"."""

    def after_load_checkpoint(self, checkpoint: dict[str, Any] | None = None, path: Path | None = None) -> None:
        """Checkpoint loaded, before it is applied; the dict may be modified."""

    def before_train(self, model: nn.Module | None = None) -> None:
        """Start of training, or of its continuation after a resume."""

    @per("epoch")
    def before_epoch(self, epoch: int | None = None, model: nn.Module | None = None) -> None:
        """Start of an epoch, which includes training and validation."""

    @per("epoch")
    def before_train_epoch(self, epoch: int | None = None, model: nn.Module | None = None) -> None:
        """Start of the training part of an epoch."""

    @per("iter")
    def before_train_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
    ) -> None:
        """Start of an iteration: the micro-batch is loaded, the forward pass not yet started."""

    @per("iter")
    def after_forward(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        outputs: Any = None,
        loss: Any = None,
    ) -> None:
        """End of the forward pass, with the loss computed, before the backward pass."""

    @per("iter")
    def after_backward(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        outputs: Any = None,
        loss: Any = None,
    ) -> None:
        """End of the backward pass, with the gradients accumulated (scaled if a gradient scaler is used)."""

    @per("step")
    def before_optimizer_step(self, step: int | None = None, optimizer: Optimizer | None = None) -> None:
        """Start of an optimizer step. Not emitted if the optimizer step is skipped."""

    @per("step")
    def after_optimizer_step(self, step: int | None = None, optimizer: Optimizer | None = None) -> None:
        """End of an optimizer step; `step` includes this optimizer step."""

    @per("iter")
    def after_train_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
        outputs: Any = None,
        loss: Any = None,
    ) -> None:
        """End of an iteration. Gradients are still available; they are zeroed at the start of the next iteration."""

    @per("epoch")
    def after_train_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, metrics: Metrics | None = None
    ) -> None:
        """End of the training part of an epoch; `metrics` contains its means, `train/...`."""

    def before_val(self, model: nn.Module | None = None) -> None:
        """Start of a validation. Averaged weights, if any, are already applied."""

    @per("epoch")
    def before_val_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, dataloader_name: str | None = None
    ) -> None:
        """Start of a validation loader; `dataloader_name` is its name if there are multiple loaders."""

    @per("batch")
    def before_val_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """Start of a validation batch, before the forward pass."""

    @per("batch")
    def after_val_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
        outputs: Any = None,
        loss: Any = None,
        dataloader_name: str | None = None,
    ) -> None:
        """End of a validation batch."""

    @per("epoch")
    def after_val_epoch(
        self,
        epoch: int | None = None,
        model: nn.Module | None = None,
        metrics: Metrics | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """End of a validation loader; `metrics` contains its results, `val/...`, read-only."""

    def after_val(self, model: nn.Module | None = None, metrics: Metrics | None = None) -> None:
        """End of the validation; `metrics` contains the results of all loaders."""

    @per("epoch")
    def after_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, metrics: Metrics | None = None
    ) -> None:
        """End of an epoch, validation included. Saves requested during the epoch are written after this point."""

    def after_train(self, model: nn.Module | None = None, metrics: Metrics | None = None) -> None:
        """End of training, complete or stopped."""

    def before_test(self, model: nn.Module | None = None) -> None:
        """Start of a test."""

    @per("epoch")
    def before_test_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, dataloader_name: str | None = None
    ) -> None:
        """Start of a test loader; `dataloader_name` is its name if there are multiple loaders."""

    @per("batch")
    def before_test_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """Start of a test batch, before the forward pass."""

    @per("batch")
    def after_test_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
        outputs: Any = None,
        loss: Any = None,
        dataloader_name: str | None = None,
    ) -> None:
        """End of a test batch."""

    @per("epoch")
    def after_test_epoch(
        self,
        epoch: int | None = None,
        model: nn.Module | None = None,
        metrics: Metrics | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """End of a test loader; `metrics` contains its results, `test/...`, read-only."""

    def after_test(self, model: nn.Module | None = None, metrics: Metrics | None = None) -> None:
        """End of the test; `metrics` contains the results of all loaders."""

    def before_save_checkpoint(self, checkpoint: dict[str, Any] | None = None) -> None:
        """Checkpoint state collected, before it is written; the dict may be modified."""

    def after_save_checkpoint(
        self, path: Path | None = None, is_best: bool | None = None, metrics: Metrics | None = None
    ) -> None:
        """Checkpoint written: the file is durable on disk."""

    def log_scalars(self, values: Mapping[str, Any] | None = None, step: int | None = None) -> None:
        """Scalars to log, by full name."""

    def log_images(
        self, tag: str | None = None, images: Any = None, step: int | None = None, caption: str | None = None
    ) -> None:
        """Images to log: an image of shape (H, W, C) or (C, H, W), or a list of images."""

    def log_histograms(self, tag: str | None = None, values: Any = None, step: int | None = None) -> None:
        """Values to log as a histogram: a tensor, or a mapping of name to tensor."""

    def log_figure(self, tag: str | None = None, figure: Any = None, step: int | None = None) -> None:
        """Matplotlib figure to log."""

    def log_text(self, tag: str | None = None, text: str | None = None, step: int | None = None) -> None:
        """Text to log."""

    def log_config(self, config: Mapping[str, Any] | None = None) -> None:
        """Run configuration to log, once per run."""

    def log_artifact(self, path: Path | None = None, name: str | None = None) -> None:
        """File to log."""

    def on_exception(self, exception: BaseException | None = None) -> None:
        """Failure or interruption of the run. Every hook is called, even if one of them raises an exception."""

    def after_run(self, mode: Mode | None = None) -> None:
        """End of a call of fit, validate or test, emitted exactly once; `run.outcome` is its outcome."""

    def cleanup(self) -> None:
        """Release of threads, files and handles; always the last point. May be emitted more than once."""


def describe(spec: type) -> dict[str, Point]:
    """Return the points that a spec class declares: its public methods, in order of definition.

    Args:
        spec: A class like `Lifecycle`.

    Returns:
        Points by name.

    Raises:
        PointError: If a method takes `*args` or `**kwargs`.
    """
    methods = {name: method for name, method in vars(spec).items() if inspect.isfunction(method)}
    return {name: point_of(method) for name, method in methods.items() if not name.startswith("_")}


def point_of(method: Callable[..., object]) -> Point:
    """Return the point that a method of a spec class declares.

    Raises:
        PointError: If the method takes `*args` or `**kwargs`.
    """
    name = method.__name__
    parameters = list(inspect.signature(method).parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise PointError(
            f"{name}{inspect.signature(method)}: invalid *args or **kwargs. Name every argument of the point {name}."
        )
    # `run` and the argument aliases exist at every point; a spec class may list them so that it reads like a listener.
    arguments = [p for p in parameters if p.name not in ("run", *SPELLINGS)]
    return Point(
        name=name,
        args=tuple(p.name for p in arguments),
        unit=getattr(method, "unit", None),
        doc=inspect.cleandoc(method.__doc__ or ""),
        types=tuple(_type_of(p) for p in arguments),
    )


def check_point(point: Point, taken: Collection[str]) -> None:
    """Raise if a custom point cannot be declared.

    Args:
        point: The point.
        taken: Names that are already in use.

    Raises:
        PointError: If a name is reserved or not an identifier, an argument is duplicated, or the unit is unknown.
    """
    for name in (point.name, *point.args):
        # The names become source code of generated functions, whose own variables start with an underscore.
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise PointError(
                f"invalid name of a point or argument, got {name!r}. Use an identifier without a leading underscore."
            )
    if point.name in taken:
        raise PointError(
            f"{point.name!r} is reserved for an alias, an action or an attribute of the bus. Choose another name."
        )
    reserved = sorted({"run", "self", *SPELLINGS} & set(point.args))
    if reserved:
        raise PointError(f"{point.name}: reserved argument {', '.join(reserved)}. Remove it from the declaration.")
    if len(set(point.args)) < len(point.args):
        raise PointError(f"{point.signature}: duplicate argument.")
    if point.unit is not None and point.unit not in get_args(Unit):
        raise PointError(f"{point.name}: unknown unit {point.unit!r}.{did_you_mean(point.unit, get_args(Unit))}")


def _type_of(parameter: inspect.Parameter) -> str:
    if parameter.annotation is inspect.Parameter.empty:
        return "Any"
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.removesuffix(" | None")  # every argument of a point is optional; the generated types add None again


POINTS: Mapping[str, Point] = describe(Lifecycle)
"""Points that hookbus declares, by name."""
