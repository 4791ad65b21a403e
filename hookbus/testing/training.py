"""A small training to try a hook in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookbus.bus import HookBus
from hookbus.run import Run
from hookbus.training.rng import get_rng_state

__all__ = ["Training", "fake_training"]


@dataclass(slots=True)
class Training:
    """What is left of a small training.

    Attributes:
        run: the run, after its end.
        model: what was trained.
        rng: the random streams at the end.
    """

    run: Run
    model: nn.Module
    rng: dict[str, Any]


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
    **options: Any,
) -> Training:
    """Train a tiny model on made-up numbers, on the CPU, with the given hooks.

    Args:
        hooks: put on a fresh bus.
        bus: use this bus instead.
        epochs, batches, batch_size: how much there is to do.
        accumulate: so many iterations make an update, over the ends of epochs.
        losses: the loss to report at each iteration (from 1), instead of the real one.
        scores: the results of the validation after each epoch (from 1); None for no validation.
        work_dir: where files go.
        options: for `bus.run`.

    Returns:
        The run and the model, after the end.
    """
    bus = bus if bus is not None else HookBus(hooks)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader, validate = _data(batches, batch_size), None if scores is None else lambda run: scores(run.epochs_done)
    trained = {"model": model, "optimizer": optimizer}
    with bus.run(**trained, epochs=epochs, work_dir=work_dir, validate=validate, **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for batch_idx, batch in run.batches(loader):
                _iteration(run, batch_idx, batch, losses, accumulate)
            if validate is not None:
                run.request_validation()
            bus.emit("after_train_epoch")
    return Training(run, model, get_rng_state())


def _data(batches: int, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of made-up numbers, and whether the sum of each sample is above 0."""
    numbers = torch.randn(batches, batch_size, 3, generator=torch.Generator().manual_seed(1))
    return [(x, (x.sum(1) > 0).long()) for x in numbers]


def _iteration(run: Run, batch_idx: int, batch: Any, losses: Callable[[int], float] | None, accumulate: int) -> None:
    """One micro-batch, with an update where one is due, and its events."""
    assert run.model is not None
    assert run.optimizer is not None
    emit = run.bus.emit
    emit("before_train_iter", batch_idx=batch_idx, batch=batch)
    if run.iters_done % accumulate == 0:
        run.optimizer.zero_grad()
    loss = functional.cross_entropy(run.model(batch[0]), batch[1])
    outputs = {"loss": loss.detach() if losses is None else losses(run.iters_done + 1)}
    emit("after_forward", batch_idx=batch_idx, batch=batch, outputs=outputs, loss=loss)
    loss.backward()
    emit("after_backward", batch_idx=batch_idx, batch=batch, outputs=outputs, loss=loss)
    if (run.iters_done + 1) % accumulate == 0:
        run.optimizer.step()
    emit("after_train_iter", batch_idx=batch_idx, batch=batch, outputs=outputs)
