"""A training that every trainer can execute, and the adapter with which `bridge_conformance` executes it in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler, TensorDataset

from hookbus._run.host import Capabilities, Checkpoints
from hookbus.bridge.bridge import Bridge
from hookbus.bus import HookBus

FEATURES, CLASSES = 6, 3
TRAIN_SAMPLES, VAL_SAMPLES = 24, 12


class TaskError(Exception):
    """Failure that a task causes on purpose."""


@dataclass(slots=True)
class HostTask:
    """A small classification, which a trainer trains and which records what the trainer has computed.

    The model, its inputs and its targets are the same in each task. Dropout draws from the global RNG, and so does
    the order of the samples, without advancing it: results are equal in all trainers whose RNG starts from the same
    seed.

    Attributes:
        epochs: Number of epochs at the end of the training, including those before a resume.
        accumulate: Number of iterations per optimizer step.
        fail_at: Iteration of this training, from 0, whose forward pass raises `TaskError`; None for no failure.
        nan_at: Iteration of this training, from 0, whose loss is NaN; None for none.
        validate: Whether to validate after each epoch.
        batch_size: Number of samples per batch, in the training and in the validation.
        seed: Seed of the global RNG at the start of a training that is not resumed.
        inputs: Inputs of the model in each training iteration.
        losses: Loss of the micro-batch in each training iteration.
    """

    epochs: int = 2
    accumulate: int = 1
    fail_at: int | None = None
    nan_at: int | None = None
    validate: bool = True
    batch_size: int = 4
    seed: int = 0
    inputs: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    @property
    def epoch_length(self) -> int:
        """Number of iterations per epoch."""
        return TRAIN_SAMPLES // self.batch_size

    def model(self) -> nn.Module:
        """Return a model with the initial weights, which maps inputs to logits. The global RNG is left unchanged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return TaskModel(self)

    def train_data(self) -> TensorDataset:
        """Return the training data: pairs of inputs and class indices."""
        return _make_data(TRAIN_SAMPLES, seed=2)

    def val_data(self) -> TensorDataset:
        """Return the validation data."""
        return _make_data(VAL_SAMPLES, seed=3)

    def train_loader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return the training loader, whose order differs between epochs."""
        data = self.train_data()
        # The generator is that of the seed of workers, which would otherwise advance the global RNG.
        return DataLoader(data, self.batch_size, sampler=ShuffledOrder(len(data)), generator=torch.Generator())

    def val_loader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return the validation loader."""
        return DataLoader(self.val_data(), self.batch_size, generator=torch.Generator())

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of a model.

        Args:
            model: Module with the parameters to train.
        """
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch, of the training or of a validation.

        Args:
            outputs: Outputs of the model.
            targets: Class indices.
        """
        loss = functional.cross_entropy(outputs, targets)
        if loss.requires_grad:
            self.losses.append(loss.detach().clone())
        return loss


class TaskModel(nn.Module):
    """Model of a task, which records its inputs in training iterations, and fails in the one that the task names."""

    def __init__(self, task: HostTask) -> None:
        super().__init__()
        self.task = task
        self.layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch of inputs."""
        if not (self.training and torch.is_grad_enabled()):
            return self.layers(inputs)  # type: ignore[no-any-return]
        task, iteration = self.task, len(self.task.inputs)
        task.inputs.append(inputs.detach().clone())
        if iteration == task.fail_at:
            raise TaskError(f"iteration {iteration}")
        outputs: Tensor = self.layers(inputs)
        return outputs * float("nan") if iteration == task.nan_at else outputs


class ShuffledOrder(Sampler[int]):
    """Order of the samples that depends on the state of the global RNG at the start of the epoch.

    Unlike `RandomSampler`, it does not advance the RNG: a trainer may create an iterator more often than it trains.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
        yield from torch.randperm(self._length, generator=generator).tolist()


@dataclass(frozen=True, slots=True)
class HostResult:
    """Result of a training in a trainer.

    Attributes:
        model: The model of the task, with the weights at the end of the training.
        bridge: The bridge, with its last run.
    """

    model: nn.Module
    bridge: Bridge


class HostAdapter(Protocol):
    """Function that trains a task in a trainer, as its users would, with the hooks of a bus.

    Attributes:
        capabilities: What the trainer offers.
    """

    capabilities: Capabilities

    def train(
        self,
        bus: HookBus,
        task: HostTask,
        directory: Path,
        *,
        checkpoints: Checkpoints = "host",
        resume: bool = False,
    ) -> HostResult:
        """Connect the bus with a new trainer by `bus.attach`, and train.

        The trainer trains `task.model()` with `task.loss`, `task.optimizer(model)` and the batches of
        `task.train_loader()`, and validates with `task.val_loader()` after each epoch if `task.validate` is set; the
        mean loss of the validation is reported as `val/loss`. The global RNG has the seed `task.seed` before the
        first iteration, and nothing but the dropout of the model advances it.

        Args:
            bus: Bus with the hooks.
            task: What to train.
            directory: Directory of the files: those of hookbus in `directory / "hookbus"`, the `work_dir` of the
                bridge, and those of the trainer in `directory / "host"`.
            checkpoints: Owner of the checkpoints. "host": the trainer saves one after each epoch, in
                `directory / "host"`. "hookbus": the bus has a checkpoint hook.
            resume: Whether to continue from the newest checkpoint.

        Raises:
            TaskError: If the task fails; the exception of the trainer is not replaced.
        """


def _make_data(samples: int, seed: int) -> TensorDataset:
    inputs = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))
