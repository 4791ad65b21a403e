"""Hugging Face Trainer. Light: no reports, progress bar, logging, checkpoints or gradient clipping."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler, PrinterCallback

from benchmarks.peers.common import BATCH, Blocks, adam, compare, compute_loss, model

LIGHT: dict[str, Any] = {"disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no", "max_grad_norm": 0.0}


class Listener(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pass


class ScheduledListener(TrainerCallback):
    """Counts its own calls, as the built-in callbacks do."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % 100 == 0:
            raise AssertionError("none of them is due")


def event(count: int, rarely: bool) -> Callable[[], Any]:
    callbacks = [(ScheduledListener if rarely else Listener)() for _ in range(count)]
    handler = CallbackHandler(callbacks, model(), None, None, None)
    state, control = TrainerState(global_step=1), TrainerControl()
    return lambda: handler.call_event("on_step_end", None, state, control)


class OverBlocks(Trainer):
    """Trainer that uses the given loader and computes the loss from the logits."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.blocks  # type: ignore[no-any-return]

    def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Tensor:
        return compute_loss(model, inputs)


def make_trainer(blocks: DataLoader[Any], directory: str, settings: dict[str, Any]) -> Trainer:
    trained = model()
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
    return trainer


def train(blocks: Blocks, settings: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        make_trainer(blocks, directory, settings).train()


def light(blocks: Blocks) -> None:
    train(blocks, LIGHT)


def defaults(blocks: Blocks) -> None:
    train(blocks, {})


if __name__ == "__main__":
    compare("transformers", event, {"light": light, "defaults": defaults})
