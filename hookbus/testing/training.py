"""A small training for tests of hooks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookbus._run.requests import Request
from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.checkpoint.state import write_checkpoint
from hookbus.data.rng import get_rng_state
from hookbus.errors import HookWarning
from hookbus.hook import Hook


@dataclass(slots=True)
class Training:
    """Result of a small training.

    Attributes:
        run: The finished run.
        model: The trained model.
        rng: RNG states at the end.
        iterations: Weak references to the loss and the batch tensors of each iteration. A reference that is still alive
            was kept by a hook.
    """

    run: Run
    model: nn.Module
    rng: dict[str, Any]
    iterations: list[tuple[weakref.ref[Tensor], ...]] = field(default_factory=list)


class CheckpointWriter(Hook):
    """Saver of checkpoints that are named after the iteration."""

    def plan(self, run: Run, _requests: list[Request]) -> Path:
        """Return the path of the checkpoint."""
        return Path(run.require("checkpoints_dir")) / f"{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        """Write the checkpoint."""
        write_checkpoint(self.plan(run, []), checkpoint, run.iters_done)
        return False


def fake_training(
    hooks: Iterable[object] = (),
    *,
    bus: HookBus | None = None,
    epochs: int = 2,
    batches: int = 3,
    batch_size: int = 4,
    accumulate: int = 1,
    losses: Callable[[int], float] | None = None,
    scores: Callable[[int], Mapping[str, float]] | None = None,
    work_dir: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Training:
    """Train a tiny model on synthetic data on the CPU.

    Args:
        hooks: Hooks to register on a new bus.
        bus: Bus to use instead of a new one.
        epochs: Number of epochs.
        batches: Number of batches per epoch.
        batch_size: Number of samples per batch.
        accumulate: Number of iterations per optimizer step, counted across epoch boundaries.
        losses: Function of the iteration, starting at 1, that returns the loss to report instead of the computed one.
        scores: Function of the epoch, starting at 1, that returns the results of the validation after the epoch. None
            for no validation.
        work_dir: Output directory. None to write no files.
        seed: Seed of torch and of the run.
        options: Keyword arguments of `bus.run`.

    Returns:
        The run and the model after the training.
    """
    bus = bus if bus is not None else HookBus(hooks)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader, validate = (
        _make_batches(batches, batch_size),
        None if scores is None else lambda run: scores(run.epochs_done),
    )
    train_step = bus.action("train_step", step := _Step(losses, accumulate))
    trained: dict[str, Any] = {"model": model, "optimizer": optimizer, "seed": seed}
    with bus.run(**trained, epochs=epochs, work_dir=work_dir, validate=validate, **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for batch_idx, batch in run.batches(loader):
                _iteration(run, batch_idx, batch, train_step)
            if validate is not None:
                run.request_validation()
            bus.emit("after_train_epoch")
    return Training(run, model, get_rng_state(), step.references)


def _make_batches(batches: int, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """Return synthetic batches: inputs of shape (batch_size, 3), and as target whether their sum is positive."""
    inputs = torch.randn(batches, batch_size, 3, generator=torch.Generator().manual_seed(1))
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


def _iteration(run: Run, batch_idx: int, batch: Any, train_step: Callable[[Any], Any]) -> None:
    """Process one micro-batch and emit its events."""
    # New tensors in each iteration, so that weak references detect a hook that keeps them.
    batch = tuple(tensor.clone() for tensor in batch)
    run.bus.emit("before_train_iter", batch_idx=batch_idx, batch=batch)
    batch = run.resolve_batch(batch)
    outputs = None if run.should_skip_iter else train_step(batch)
    run.bus.emit("after_train_iter", batch_idx=batch_idx, batch=batch, outputs=outputs)


class _Step:
    """Training step: forward pass, backward pass, and an optimizer step at the end of an accumulation group.

    Args:
        losses: Function that returns the loss to report at each iteration, starting at 1. None for the computed loss.
        accumulate: Number of iterations per optimizer step.
    """

    def __init__(self, losses: Callable[[int], float] | None, accumulate: int) -> None:
        self.losses, self.accumulate = losses, accumulate
        self.references: list[tuple[weakref.ref[Tensor], ...]] = []

    def __call__(self, run: Run, batch: Any) -> dict[str, Any]:
        """Run the step and emit its events. A hook may skip the iteration after the forward pass."""
        assert run.model is not None
        assert run.optimizer is not None
        if run.iters_done % self.accumulate == 0:
            run.optimizer.zero_grad()
        loss = functional.cross_entropy(run.model(batch[0]), batch[1])
        self.references.append(tuple(weakref.ref(tensor) for tensor in (loss, *batch)))
        outputs = {"loss": loss.detach() if self.losses is None else self.losses(run.iters_done + 1)}
        run.bus.emit("after_forward", batch=batch, outputs=outputs, loss=loss)
        loss = run.resolve_loss(loss)
        if self.losses is None:
            outputs["loss"] = loss.detach()
        if not run.should_skip_iter:
            self._backward_and_step(run, batch, outputs, loss)
        return outputs

    def _backward_and_step(self, run: Run, batch: Any, outputs: dict[str, Any], loss: Tensor) -> None:
        assert run.optimizer is not None
        loss.backward()
        run.bus.emit("after_backward", batch=batch, outputs=outputs, loss=loss)
        if (run.iters_done + 1) % self.accumulate == 0:
            run.optimizer.step()


def collect_warnings(call: Callable[[], object]) -> list[str]:
    """Call a function and return the messages of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        call()
    return [str(warning.message) for warning in caught if issubclass(warning.category, HookWarning)]
