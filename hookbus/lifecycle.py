"""Points of a run, one method each.

`Lifecycle` is the only list of points. The pluggy specs, the typed `emit`, the tables in the documentation and
`hookbus points` are derived from it. A hook listens at a point by defining a method of the same name that takes any of
the arguments, in any order. `run` is available at every point. An argument that an event omits is the current value of
the run, or None.

An *epoch* is one pass over the training loader, an *iteration* is one micro-batch, and a *step* is one optimizer step.
`epoch` and `batch_idx` are indices from 0. `step` is the number of completed optimizer steps, the axis of all logged
values. The clock advances immediately before an `after_*` event. Schedules count in the unit of `@counted`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hookbus._events.points import Point, counted, parse_points

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer

    from hookbus.metrics.results import Metrics

__all__ = ["POINTS", "Lifecycle", "Mode"]

Mode = Literal["train", "val", "test", "predict"]
"""Call that starts a run: fit, validate, test or predict."""


class Lifecycle:
    """Points of a run, in the order in which training emits them."""

    # One block per phase, without blank lines between its points.
    # fmt: off

    def before_run(self, mode: Mode) -> None:
        """Start of a call of fit, validate, test or predict; `mode` is "train", "val", "test" or "predict"."""
    def after_load_checkpoint(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Checkpoint loaded, before it is applied; the dict may be modified."""

    def before_train(self, model: nn.Module) -> None:
        """Start of training, or of its continuation after a resume."""
    @counted("epoch")
    def before_epoch(self, epoch: int, model: nn.Module) -> None:
        """Start of an epoch, which includes training and validation."""
    @counted("epoch")
    def before_train_epoch(self, epoch: int, model: nn.Module) -> None:
        """Start of the training part of an epoch."""
    @counted("iter")
    def before_train_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module) -> None:
        """Start of an iteration: the micro-batch is loaded, the forward pass not yet started."""
    @counted("iter")
    def after_forward(self, step: int, batch_idx: int, batch: Any, outputs: Any, loss: Any) -> None:
        """End of the forward pass, with the loss computed, before the backward pass."""
    @counted("iter")
    def after_backward(self, step: int, batch_idx: int, batch: Any, outputs: Any, loss: Any) -> None:
        """End of the backward pass, with the gradients accumulated (scaled if a gradient scaler is used)."""
    @counted("step")
    def before_optimizer_step(self, step: int, optimizer: Optimizer) -> None:
        """Start of an optimizer step. Not emitted if the optimizer step is skipped."""
    @counted("step")
    def after_optimizer_step(self, step: int, optimizer: Optimizer) -> None:
        """End of an optimizer step; `step` includes this optimizer step."""
    @counted("iter")
    def after_train_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module, outputs: Any,
                         loss: Any) -> None:
        """End of an iteration. Gradients are still available; they are zeroed at the start of the next iteration."""
    @counted("epoch")
    def after_train_epoch(self, epoch: int, model: nn.Module, metrics: Metrics) -> None:
        """End of the training part of an epoch; `metrics` contains its means, `train/...`."""

    def before_val(self, model: nn.Module) -> None:
        """Start of a validation. Averaged weights, if any, are already applied."""
    @counted("epoch")
    def before_val_epoch(self, epoch: int, model: nn.Module, dataloader_name: str) -> None:
        """Start of a validation loader; `dataloader_name` is its name if there are multiple loaders."""
    @counted("batch")
    def before_val_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module, dataloader_name: str) -> None:
        """Start of a validation batch, before the forward pass."""
    @counted("batch")
    def after_val_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module, outputs: Any, loss: Any,
                       dataloader_name: str) -> None:
        """End of a validation batch."""
    @counted("epoch")
    def after_val_epoch(self, epoch: int, model: nn.Module, metrics: Metrics, dataloader_name: str) -> None:
        """End of a validation loader; `metrics` contains its results, `val/...`, read-only."""
    def after_val(self, model: nn.Module, metrics: Metrics) -> None:
        """End of the validation; `metrics` contains the results of all loaders, see `run.request_results`."""

    @counted("epoch")
    def after_epoch(self, epoch: int, model: nn.Module, metrics: Metrics) -> None:
        """End of an epoch, validation included. Saves requested during the epoch are written after this point."""
    def after_train(self, model: nn.Module, metrics: Metrics) -> None:
        """End of training, complete or stopped."""

    def before_test(self, model: nn.Module) -> None:
        """Start of a test."""
    @counted("epoch")
    def before_test_epoch(self, epoch: int, model: nn.Module, dataloader_name: str) -> None:
        """Start of a test loader; `dataloader_name` is its name if there are multiple loaders."""
    @counted("batch")
    def before_test_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module, dataloader_name: str) -> None:
        """Start of a test batch, before the forward pass."""
    @counted("batch")
    def after_test_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module, outputs: Any, loss: Any,
                        dataloader_name: str) -> None:
        """End of a test batch."""
    @counted("epoch")
    def after_test_epoch(self, epoch: int, model: nn.Module, metrics: Metrics, dataloader_name: str) -> None:
        """End of a test loader; `metrics` contains its results, `test/...`, read-only."""
    def after_test(self, model: nn.Module, metrics: Metrics) -> None:
        """End of the test; `metrics` contains the results of all loaders."""

    def before_predict(self, model: nn.Module) -> None:
        """Start of a prediction."""
    @counted("epoch")
    def before_predict_epoch(self, epoch: int, model: nn.Module, dataloader_name: str) -> None:
        """Start of a prediction loader; `dataloader_name` is its name if there are multiple loaders."""
    @counted("batch")
    def before_predict_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module,
                            dataloader_name: str) -> None:
        """Start of a prediction batch, before the forward pass."""
    @counted("batch")
    def after_predict_iter(self, step: int, batch_idx: int, batch: Any, model: nn.Module, outputs: Any,
                           indices: Sequence[int], dataloader_name: str) -> None:
        """End of a prediction batch; `indices` contains the position of each of its samples in the data, from 0."""
    @counted("epoch")
    def after_predict_epoch(self, epoch: int, model: nn.Module, metrics: Metrics, dataloader_name: str) -> None:
        """End of a prediction loader; `metrics` contains the values that hooks have logged, `predict/...`."""
    def after_predict(self, model: nn.Module, metrics: Metrics) -> None:
        """End of the prediction; `metrics` contains the logged values of all loaders."""

    def before_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checkpoint state collected, before it is written; the dict may be modified."""
    def after_save_checkpoint(self, path: Path, is_best: bool, metrics: Metrics) -> None:
        """Checkpoint written: the file is durable on disk."""

    def log_scalars(self, values: Mapping[str, Any], step: int) -> None:
        """Scalars to log, by full name: those of hooks, training records, and results of validations and tests."""
    def log_images(self, tag: str, images: Any, step: int, caption: str) -> None:
        """Images to log: an image of shape (H, W, C) or (C, H, W), or a list of images."""
    def log_histograms(self, tag: str, values: Any, step: int) -> None:
        """Values to log as a histogram: a tensor, or a mapping of name to tensor."""
    def log_figure(self, tag: str, figure: Any, step: int) -> None:
        """Matplotlib figure to log."""
    def log_text(self, tag: str, text: str, step: int) -> None:
        """Text to log."""
    def log_config(self, config: Mapping[str, Any]) -> None:
        """Run configuration to log, once per run."""
    def log_artifact(self, path: Path, name: str) -> None:
        """File to log."""

    def on_exception(self, exception: BaseException) -> None:
        """Failure or interruption of the run. Every hook is called, even if one of them raises an exception."""
    def after_run(self, mode: Mode) -> None:
        """End of a call of fit, validate, test or predict, emitted exactly once; `run.outcome` is its outcome."""
    def cleanup(self) -> None:
        """Release of threads, files and handles; always the last point. May be emitted more than once."""


POINTS: Mapping[str, Point] = parse_points(Lifecycle)
"""Points that hookbus declares, by name."""
