"""Trainers of the task, and small models that are built from a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hookbus import HookBus
from hookbus.testing import HostTask

from .adapter import TaskTrainer, make_arguments


def make_trainer(directory: Path, task: HostTask | None = None, **options: Any) -> TaskTrainer:
    """Return a Trainer of a task, with options that replace those of `make_arguments`."""
    task = task or HostTask()
    return TaskTrainer(task, make_arguments(directory / "host", task, **options))


def train(
    bus: HookBus, directory: Path, task: HostTask | None = None, *, resume: Any = None, **options: Any
) -> tuple[Any, TaskTrainer]:
    """Return the bridge and the Trainer after a training."""
    task = task or HostTask()
    trainer = make_trainer(directory, task, **options)
    bridge = bus.attach(trainer)
    torch.manual_seed(task.seed)
    trainer.train(resume_from_checkpoint=resume)
    return bridge, trainer


def make_model_trainer(model: Any, directory: Path, samples: Any, cls: Any = Trainer, **options: Any) -> Any:
    """Return a Trainer of a model on the CPU, which trains two epochs of four batches and evaluates the same data."""
    keys = ("compute_metrics", "compute_loss_func", "callbacks", "data_collator", "eval_dataset")
    parts = {"eval_dataset": samples, **{key: options.pop(key) for key in keys if key in options}}
    arguments = options.pop("arguments", TrainingArguments)(
        str(directory),
        **{
            "num_train_epochs": 2,
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 4,
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "save_strategy": "no",
            "logging_strategy": "no",
            **options,
        },
    )
    return cls(model, arguments, train_dataset=samples, **parts)


def make_classifier() -> Any:
    """Return a classifier with two classes, in evaluation mode like all models of Transformers."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            max_position_embeddings=16,
        )
    )  # fmt: skip


def make_language_model() -> Any:
    """Return a language model, whose loss is divided by the number of tokens of all micro-batches of a step."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def make_labeled_texts(count: int = 8) -> list[dict[str, Any]]:
    """Return samples of token IDs and a class."""
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(20, (6,), generator=generator), "labels": i % 2} for i in range(count)]


def make_texts(lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Return samples of 6 token IDs, of which the first of each length are predicted."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for length in lengths:
        ids = torch.randint(20, (6,), generator=generator)
        samples.append({"input_ids": ids, "labels": torch.where(torch.arange(6) < length, ids, -100)})
    return samples


class StopTrainer(TrainerCallback):
    """Stop the Trainer at the end of a step, as any callback may."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.step or control.should_training_stop
