"""Hugging Face Trainer. Light: no reports, no progress bar, nothing logged or saved, no clipping of gradients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler, PrinterCallback

from benchmarks.peers.common import BATCH, Blocks, adam, compare, loss_of, model

LIGHT: dict[str, Any] = {"disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no", "max_grad_norm": 0.0}


class Listens(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pass


class ListensNowAndThen(TrainerCallback):
    """Counts for itself, as its own callbacks do."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % 100 == 0:
            raise AssertionError("none of them is due")


def event(count: int, rarely: bool) -> Callable[[], Any]:
    callbacks = [(ListensNowAndThen if rarely else Listens)() for _ in range(count)]
    handler = CallbackHandler(callbacks, model(), None, None, None)
    state, control = TrainerState(global_step=1), TrainerControl()
    return lambda: handler.call_event("on_step_end", None, state, control)


class OverBlocks(Trainer):
    """Takes the loader as it is, and the loss from the scores."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.blocks  # type: ignore[no-any-return]

    def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Tensor:
        return loss_of(model, inputs)


def train(blocks: Blocks, settings: dict[str, Any]) -> None:
    trained = model()
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            use_cpu=True,
            report_to="none",
            lr_scheduler_type="constant",
            **settings,
        )
        trainer = OverBlocks(trained, arguments, train_dataset=blocks.dataset, optimizers=(adam(trained), None))
        trainer.blocks = blocks
        if settings:
            trainer.remove_callback(PrinterCallback)
        trainer.train()


def light(blocks: Blocks) -> None:
    train(blocks, LIGHT)


def defaults(blocks: Blocks) -> None:
    train(blocks, {})


if __name__ == "__main__":
    compare("transformers", event, {"light": light, "defaults": defaults})
