"""Training of the task of the conformance check in a Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from hookbus import HookBus
from hookbus.bridge import Capabilities
from hookbus.testing import HostResult, HostTask
from hookbus_transformers import CAPABILITIES

logging.set_verbosity_error()
logging.disable_progress_bar()


class TaskTrainer(Trainer):
    """Trainer of the model, the data and the loss of a task."""

    def __init__(self, task: HostTask, args: TrainingArguments) -> None:
        self.task, model = task, task.model()
        data = {"train_dataset": task.train_data(), "eval_dataset": task.val_data()}
        super().__init__(model, args, **data, optimizers=(task.optimizer(model), None))

    def get_train_dataloader(self) -> Any:
        return name_inputs(self.task.train_loader())

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return name_inputs(self.task.val_loader())

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        logits = model(inputs["inputs"])
        loss = self.task.loss(logits, inputs["labels"])
        return (loss, {"logits": logits}) if return_outputs else loss


class TransformersAdapter:
    """Train a task in a `transformers.Trainer`."""

    capabilities: Capabilities = CAPABILITIES

    def train(
        self, bus: HookBus, task: HostTask, directory: Path, *, checkpoints: Any = "host", resume: bool = False
    ) -> HostResult:
        trainer = TaskTrainer(task, make_arguments(directory / "host", task))
        bridge = bus.attach(trainer, checkpoints=checkpoints, work_dir=directory / "hookbus")
        if not resume:
            torch.manual_seed(task.seed)
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.model is not None
        return HostResult(trainer.model, bridge)


def make_arguments(directory: Path, task: HostTask, **options: Any) -> TrainingArguments:
    """Return the arguments of a training on the CPU, whose learning rate is that of the optimizer of the task."""
    return TrainingArguments(
        str(directory),
        **{
            "num_train_epochs": task.epochs,
            "per_device_train_batch_size": task.batch_size,
            "per_device_eval_batch_size": task.batch_size,
            "gradient_accumulation_steps": task.accumulate,
            "eval_strategy": "epoch" if task.validate else "no",
            "save_strategy": "epoch",
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "label_names": ["labels"],
            "seed": task.seed,
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            **options,
        },
    )


def name_inputs(loader: Any) -> Any:
    """Let a loader of pairs return batches by name, as a Trainer requires."""
    loader.collate_fn = collate
    return loader


def collate(samples: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    inputs, labels = zip(*samples, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}
