"""What can I listen to? Every point of a run, one method each.

This class is the only list of points. The pluggy specs, the typed `emit`, the table in the docs and
`hookbus points` are derived from it. A hook that wants to listen writes a method of the same name with
the arguments it wants, in any order; `run` is available at every point.

Words: an *epoch* is one pass over the training loader, an *iteration* one micro-batch, a *step* one
update of the optimizer. `epoch` and `batch_idx` are indices from 0; `step` is the number of updates made
so far, the axis on which everything is recorded. The clock advances just before an `after_*` event.
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
"""Second names of points, resolved at registration."""

SPELLINGS: Mapping[str, str] = {"runner": "run", "data_batch": "batch"}
"""Second names of arguments: a listener that asks for `runner` gets `run`."""


@dataclass(frozen=True, slots=True)
class Point:
    """One named moment of a run.

    Attributes:
        name: the name of the method in `Lifecycle`.
        args: what listeners may ask for besides `run`, in order.
        unit: what `when=` counts here unless told otherwise; None where nothing is counted.
        doc: what the point means, as Markdown.
        types: the annotation of each argument, as written.
    """

    name: str
    args: tuple[str, ...]
    unit: Unit | None
    doc: str
    types: tuple[str, ...]

    @property
    def reverse(self) -> bool:
        """Whether the nested order runs from large to small priorities here."""
        return self.name.startswith("after_") or self.name == "cleanup"

    @property
    def signature(self) -> str:
        """The point as a listener could write it: `after_train_iter(run, step, ...)`."""
        return f"{self.name}({', '.join(('run', *self.args))})"


def per(unit: Unit) -> Callable[[F], F]:
    """Mark a point as one that is counted, so that `when=every(n)` works there."""

    def mark(method: F) -> F:
        method.unit = unit  # type: ignore[attr-defined]
        return method

    return mark


class Lifecycle:
    """The points of a run, in the order in which a training passes through them."""

    def before_run(self, mode: Mode | None = None) -> None:
        """A call of fit, validate or test begins; `mode` is "train", "val" or "test"."""

    def after_load_checkpoint(self, checkpoint: dict[str, Any] | None = None, path: Path | None = None) -> None:
        """A checkpoint was read and is about to be applied; the dict may be changed."""

    def before_train(self, model: nn.Module | None = None) -> None:
        """Training begins, or goes on after a resume."""

    @per("epoch")
    def before_epoch(self, epoch: int | None = None, model: nn.Module | None = None) -> None:
        """An epoch begins: the outer bracket, validation included."""

    @per("epoch")
    def before_train_epoch(self, epoch: int | None = None, model: nn.Module | None = None) -> None:
        """The training part of an epoch begins."""

    @per("iter")
    def before_train_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
    ) -> None:
        """A micro-batch was fetched and is about to be used."""

    @per("iter")
    def after_forward(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        outputs: Any = None,
        loss: Any = None,
    ) -> None:
        """The model was called and the loss computed; nothing was propagated back yet."""

    @per("iter")
    def after_backward(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        outputs: Any = None,
        loss: Any = None,
    ) -> None:
        """The gradients of this micro-batch were added (scaled, where a gradient scaler is used)."""

    @per("step")
    def before_optimizer_step(self, step: int | None = None, optimizer: Optimizer | None = None) -> None:
        """The optimizer is about to update the weights. Not fired where the update is left out."""

    @per("step")
    def after_optimizer_step(self, step: int | None = None, optimizer: Optimizer | None = None) -> None:
        """The optimizer has updated the weights; `step` counts this update."""

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
        """A micro-batch is done. Its gradients are still there: they are zeroed when the next begins."""

    @per("epoch")
    def after_train_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, metrics: Metrics | None = None
    ) -> None:
        """The training part of an epoch is over; `metrics` holds its means, `train/...`."""

    def before_val(self, model: nn.Module | None = None) -> None:
        """A validation begins. Averaged weights, where there are any, are swapped in already."""

    @per("epoch")
    def before_val_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, dataloader_name: str | None = None
    ) -> None:
        """One validation loader begins; `dataloader_name` tells which, where there are several."""

    @per("batch")
    def before_val_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """A validation batch is about to be used."""

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
        """A validation batch is done."""

    @per("epoch")
    def after_val_epoch(
        self,
        epoch: int | None = None,
        model: nn.Module | None = None,
        metrics: Metrics | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """One validation loader is done; `metrics` holds its results, `val/...`, read-only."""

    def after_val(self, model: nn.Module | None = None, metrics: Metrics | None = None) -> None:
        """The validation is over; `metrics` holds the results of all loaders."""

    @per("epoch")
    def after_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, metrics: Metrics | None = None
    ) -> None:
        """An epoch is over, its validation included. Files asked for in the epoch are written after this."""

    def after_train(self, model: nn.Module | None = None, metrics: Metrics | None = None) -> None:
        """Training is over, or was stopped."""

    def before_test(self, model: nn.Module | None = None) -> None:
        """A test begins."""

    @per("epoch")
    def before_test_epoch(
        self, epoch: int | None = None, model: nn.Module | None = None, dataloader_name: str | None = None
    ) -> None:
        """One test loader begins."""

    @per("batch")
    def before_test_iter(
        self,
        step: int | None = None,
        batch_idx: int | None = None,
        batch: Any = None,
        model: nn.Module | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """A test batch is about to be used."""

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
        """A test batch is done."""

    @per("epoch")
    def after_test_epoch(
        self,
        epoch: int | None = None,
        model: nn.Module | None = None,
        metrics: Metrics | None = None,
        dataloader_name: str | None = None,
    ) -> None:
        """One test loader is done; `metrics` holds its results, `test/...`, read-only."""

    def after_test(self, model: nn.Module | None = None, metrics: Metrics | None = None) -> None:
        """The test is over; `metrics` holds the results of all loaders."""

    def before_save_checkpoint(self, checkpoint: dict[str, Any] | None = None) -> None:
        """A checkpoint was collected and is about to be written; the dict may be changed."""

    def after_save_checkpoint(
        self, path: Path | None = None, is_best: bool | None = None, metrics: Metrics | None = None
    ) -> None:
        """A checkpoint is safely on disk."""

    def log_scalars(self, values: Mapping[str, Any] | None = None, step: int | None = None) -> None:
        """Numbers to be recorded as they are, under full names."""

    def log_images(
        self, tag: str | None = None, images: Any = None, step: int | None = None, caption: str | None = None
    ) -> None:
        """Pictures to be recorded: one of shape (H, W, C) or (C, H, W), or a list of them."""

    def log_histograms(self, tag: str | None = None, values: Any = None, step: int | None = None) -> None:
        """Values whose distribution is to be recorded: a tensor, or a mapping of name to tensor."""

    def log_figure(self, tag: str | None = None, figure: Any = None, step: int | None = None) -> None:
        """A matplotlib figure to be recorded."""

    def log_text(self, tag: str | None = None, text: str | None = None, step: int | None = None) -> None:
        """A text to be recorded."""

    def log_config(self, config: Mapping[str, Any] | None = None) -> None:
        """The configuration of the run, to be recorded once."""

    def log_artifact(self, path: Path | None = None, name: str | None = None) -> None:
        """A file to be recorded."""

    def on_exception(self, exception: BaseException | None = None) -> None:
        """The run failed or was interrupted. Reaches every hook, even if one of them fails here."""

    def after_run(self, mode: Mode | None = None) -> None:
        """The call of fit, validate or test ends, exactly once; `run.outcome` tells how."""

    def cleanup(self) -> None:
        """Always last: give back threads, files and handles. May be called more than once."""


def describe(spec: type) -> dict[str, Point]:
    """Read the points that a spec class declares: its public methods, in the order of its body.

    Args:
        spec: a class like `Lifecycle`.

    Returns:
        The points by name.

    Raises:
        PointError: a method takes `*args` or `**kwargs`.
    """
    methods = {name: method for name, method in vars(spec).items() if inspect.isfunction(method)}
    return {name: point_of(method) for name, method in methods.items() if not name.startswith("_")}


def point_of(method: Callable[..., object]) -> Point:
    """Read the point that a method of a spec class declares.

    Raises:
        PointError: it takes `*args` or `**kwargs`.
    """
    name = method.__name__
    parameters = list(inspect.signature(method).parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise PointError(f"{name}{inspect.signature(method)}: name every argument of the point {name}.")
    wanted = [p for p in parameters if p.name not in ("run", *SPELLINGS)]
    return Point(
        name=name,
        args=tuple(p.name for p in wanted),
        unit=getattr(method, "unit", None),
        doc=inspect.cleandoc(method.__doc__ or ""),
        types=tuple(_type_of(p) for p in wanted),
    )


def check_point(point: Point, taken: Collection[str]) -> None:
    """See that a point of one's own can be declared.

    Args:
        point: the point.
        taken: names that mean something else.

    Raises:
        PointError: a name is reserved or no identifier, an argument comes twice, or there is no such unit.
    """
    for each in (point.name, *point.args):
        if not each.isidentifier() or keyword.iskeyword(each) or each.startswith("_"):
            raise PointError(f"{each!r} cannot be the name of a point or argument: write a plain identifier.")
    if point.name in taken:
        raise PointError(
            f"{point.name!r} is an alias or an action, or a word of the bus, so it cannot be declared as a point."
        )
    reserved = sorted({"run", "self", *SPELLINGS} & set(point.args))
    if reserved:
        raise PointError(f"{point.name}: {', '.join(reserved)} means something at every point; do not declare it.")
    if len(set(point.args)) < len(point.args):
        raise PointError(f"{point.signature}: an argument comes twice.")
    if point.unit is not None and point.unit not in get_args(Unit):
        raise PointError(f"{point.name}: {point.unit!r} is not a unit.{did_you_mean(point.unit, get_args(Unit))}")


def _type_of(parameter: inspect.Parameter) -> str:
    if parameter.annotation is inspect.Parameter.empty:
        return "Any"
    kind = parameter.annotation
    return (kind if isinstance(kind, str) else inspect.formatannotation(kind)).removesuffix(" | None")


POINTS: Mapping[str, Point] = describe(Lifecycle)
"""Every point that hookbus itself declares, by name."""
