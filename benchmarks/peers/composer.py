"""Composer. Light: no loggers, progress bar, algorithms, checkpoints or training metrics.

It requires torch below 2.7.1, which hookbus does not support, so it is compared with the lower bound only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from composer import Callback, Event, State, Trainer
from composer.loggers import Logger
from composer.models import ComposerModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.common import Batch, Blocks, adam, compare, model


class Listener(Callback):
    def batch_end(self, state: State, logger: Logger) -> None:
        pass


class ScheduledListener(Callback):
    """Counts its own calls, as the built-in callbacks do."""

    def batch_end(self, state: State, logger: Logger) -> None:
        if (state.timestamp.batch.value + 1) % 100 == 0:
            raise AssertionError("none of them is due")


class Model(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers: nn.Module = model()

    def forward(self, batch: Batch) -> Tensor:
        return self.layers(batch[0])  # type: ignore[no-any-return]

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(outputs, batch[1])


def trainer(blocks: Blocks, **settings: Any) -> Trainer:
    trained = Model()
    return Trainer(
        model=trained,
        train_dataloader=blocks,
        optimizers=adam(trained),
        max_duration="1ep",
        device="cpu",
        progress_bar=False,
        **settings,
    )


def event(count: int, rarely: bool) -> Callable[[], Any]:
    made = trainer(Blocks(), callbacks=[(ScheduledListener if rarely else Listener)() for _ in range(count)])
    return lambda: made.engine.run_event(Event.BATCH_END)


def light(blocks: Blocks) -> None:
    trainer(blocks).fit()


if __name__ == "__main__":
    compare("composer", event, {"light": light}, shares_environment=False)
