"""A loop that offers exactly what a record of capabilities says, to run hooks in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from hookbus import Hook, Needs, Run
from hookbus._run.sandbox import call_model
from hookbus.bridge import Capabilities
from hookbus.checkpoint import CheckpointSaver
from hookbus.distributed import Collectives
from hookbus.lifecycle import POINTS
from hookbus.testing import RecordingBus

EPOCH_POINTS = frozenset({"before_epoch", "before_train_epoch", "after_train_epoch", "after_epoch"})
UNCONDITIONAL = {"before_run", "before_train", "after_train_iter", "after_train", "after_run", "cleanup"}
OPTIONAL_POINTS = [point for point in POINTS if point not in UNCONDITIONAL and not point.startswith("log_")]
"""Points that a trainer may omit."""

FLAGS = ("batch", "outputs", "loss", "modules", "data", "optimizer")
"""Needs that are fields of both records."""

REASON = "it has no such moment. Use the loop of hookbus."


def build_capabilities(hook: Hook) -> Capabilities:
    """Return a record without anything that a hook does not declare; the first of alternatives is offered."""
    needs = hook.needs
    points = {need if isinstance(need, str) else need[0] for need in needs.points}
    points |= {"after_val"} if hook.requires_validation else set()
    requests = [*needs.requests, *(["validation"] if hook.schedules_validation else [])]
    return Capabilities(
        host="OtherTrainer",
        bridge="unused:Unused",
        missing={point: REASON for point in OPTIONAL_POINTS if point not in points | set(needs.gradients[:1])},
        requests=dict.fromkeys(requests, "iteration"),
        actions=needs.actions,
        accumulation=hook.schedules_accumulation,
        gradients=needs.gradients[:1],
        checkpoints=("host", "hookbus"),
        **{flag: getattr(needs, flag) for flag in FLAGS},
    )


def iter_reduced(hook: Hook, offered: Capabilities) -> Iterator[tuple[str, Capabilities]]:
    """Yield, for each need of a hook, its name and the record without exactly this need."""
    needs: Needs = hook.needs
    points = [need if isinstance(need, tuple) else (need,) for need in needs.points]
    points += [("after_val",)] if hook.requires_validation else []
    for alternatives in points:
        yield " or ".join(alternatives), replace(offered, missing=offered.missing | dict.fromkeys(alternatives, REASON))
    for request, name in REQUEST_NAMES.items():
        if request in offered.requests:
            kept = {other: when for other, when in offered.requests.items() if other != request}
            yield name, replace(offered, requests=kept)
    for action in needs.actions:
        yield action, replace(offered, actions=())
    if hook.schedules_accumulation:
        yield "micro-batches", replace(offered, accumulation=False)
    if needs.gradients:
        yield " or ".join(needs.gradients), replace(offered, gradients=())
    for flag in FLAGS:
        if getattr(needs, flag):
            yield FLAG_NAMES[flag], replace(offered, **{flag: False})


REQUEST_NAMES = {"stop": "stop", "skip": "skipped iteration", "validation": "schedules validations"}
FLAG_NAMES = {
    "batch": "the batch of each iteration",
    "outputs": "the outputs of the model",
    "loss": "the loss of each iteration",
    "modules": "modules of torch.nn",
    "data": "a training loader whose data it may modify",
    "optimizer": "an optimizer of torch.optim",
}
"""Words of the messages."""


class Images(Dataset[tuple[Tensor, int]]):
    """Four images of ones, or of zeros if transforms are skipped, with all methods that hooks call on a dataset."""

    classes = ("cat", "dog", "bird")
    skipped: tuple[str, ...] = ()
    size: Any = None

    def __init__(self) -> None:
        self.pipeline: Callable[[Tensor], Tensor] = torch.clone

    def update_skip_type_keys(self, keys: list[str]) -> None:
        self.skipped = tuple(keys)

    def update_dynamic_scale(self, size: Any) -> None:
        self.size = size

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.zeros(1, 4, 4) if self.skipped else torch.linspace(0.1, 1, 16).reshape(1, 4, 4)
        return self.pipeline(image), index % 2


class Flat(nn.Module):
    """Model without layers that are modules."""

    num_classes = 2
    use_l1 = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.1, 0.1, 32).reshape(2, 16))
        self.bias = nn.Parameter(torch.zeros(2))
        self.register_buffer("mean", torch.ones(1))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.flatten(1), self.weight, self.bias)


class Layered(Flat):
    """Model with layers: a convolution, a normalization, and a student with its teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)
        self.student, self.teacher = nn.Linear(16, 2), nn.Linear(16, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.student(self.norm(self.conv(x)).flatten(1))
        return output + 0 * self.weight.sum() + self.bias


class OtherRank(Collectives):
    """Collectives of two ranks, of which the other one contributes zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.world_size = 2


class HostLoop:
    """Other trainer of two epochs of two iterations.

    Args:
        hook: Hook to train with.
        offered: What the loop does.
        work_dir: Work directory.
        claimed: What the loop claims to offer. Default: `offered`.
        batches: Batches of an epoch. Default: those of a loader of `Images`.
        during: Called in each iteration with the loop.
        failure: Exception at the end of the first epoch.
        ranks: Collectives of the run.
        unused: Whether the model has a parameter that neither the optimizer nor the forward pass uses.

    Attributes:
        bus, run, model: Bus, run and model of the training.
        rates, inputs, sizes, steps, losses, accuracies: Learning rate, first pixel and size of the images, number of
            optimizer steps, and logged values of each iteration.
        weights: Copy of the state of the model after each iteration.
        epochs_of_sampler: Epoch of the sampler in each iteration.
    """

    def __init__(
        self,
        hook: Hook,
        offered: Capabilities,
        work_dir: Path,
        *,
        claimed: Capabilities | None = None,
        batches: Sequence[Any] | None = None,
        during: Callable[[HostLoop], object] = lambda loop: None,
        failure: Exception | None = None,
        ranks: Collectives | None = None,
        unused: bool = False,
    ) -> None:
        self.capabilities = claimed or offered
        self.checkpoints = "hookbus" if isinstance(hook, CheckpointSaver) else "host"
        self.hook, self.offered, self.batches, self.during = hook, offered, batches, during
        self.work_dir, self.failure, self.ranks = work_dir, failure, ranks
        self.bus = RecordingBus([hook])
        torch.manual_seed(0)
        self.model: Any = Layered() if offered.modules else Flat()
        self.is_stopped, self.updates, self.has_unused = False, 0, unused
        self.rates: list[float] = []
        self.inputs: list[float] = []
        self.steps: list[int] = []
        self.sizes: list[Any] = []
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.weights: list[dict[str, Tensor]] = []
        self.epochs_of_sampler: list[int] = []

    # -- host ------------------------------------------------------------------------------------

    @property
    def can_validate(self) -> bool:
        return "validation" in self.offered.requests

    def describe_lr_schedule(self) -> str:
        return ""

    def compute_outputs(self, batch: Any) -> object:
        return call_model(self.run, batch)

    def stop(self, reasons: Sequence[str]) -> None:
        self.is_stopped = "stop" in self.offered.requests

    def stop_epoch(self) -> None:
        raise NotImplementedError

    def save(self, reasons: Sequence[str]) -> None:
        raise NotImplementedError

    def validate(self) -> None:
        if "validation" in self.offered.requests:
            self._validate()

    # -- loop ------------------------------------------------------------------------------------

    def attempt(self) -> str:
        """Train, and return the message of the error that ended the training, except for the failure of the loop."""
        try:
            self.train()
        except Exception as error:
            return "" if error is self.failure else str(error)
        return ""

    def train(self) -> None:
        """Train, and raise the failure of the loop or of the hook."""
        loader, dataset = self._build_loader()
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)
        if self.has_unused:
            self.model.unused = nn.Parameter(torch.zeros(1))
        options: dict[str, Any] = {"optimizer": self.optimizer if self.offered.optimizer else None}
        self.counts_steps = not self.offered.optimizer and self._emits("before_optimizer_step")
        self.run = self.bus.open(
            host=self,
            model=self.model,
            epochs=2,
            work_dir=self.work_dir,
            train_loader=loader,
            config={"lr": 0.1},
            counts_steps=self.counts_steps,
            **options,
        )
        if self.ranks is not None:
            self.run.ranks = self.ranks
        self.step = self.bus.action("train_step", self._step) if "train_step" in self.offered.actions else None
        self.bus.emit("before_train")
        try:
            for _ in range(2):
                self._train_epoch(loader, dataset)
                if self.failure is not None:
                    raise self.failure
                if self.is_stopped:
                    break
        except BaseException as error:
            self.run.close(error if self._emits("on_exception") else None)
            raise
        self.run.close()

    def _build_loader(self) -> tuple[Any, Images]:
        dataset = Images()
        sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
        return DataLoader(dataset, batch_size=2, sampler=sampler), dataset

    def _train_epoch(self, loader: Any, dataset: Images) -> None:
        self.model.train()
        has_epochs = any(map(self._emits, EPOCH_POINTS))
        if has_epochs:
            self.bus.emit("before_train_epoch")
        if not self.offered.data:  # a loader of its own
            loader, dataset = self._build_loader()
        batches = list(loader) if self.batches is None else self.batches
        read = enumerate(batches)
        for batch_idx, batch in self.run.batches(loader) if self.offered.data else read:
            self.epochs_of_sampler.append(loader.sampler.epoch)
            self.sizes.append(dataset.size)
            self._train_iteration(batch_idx, batch)
            if self.is_stopped:
                break
        if has_epochs:
            self.bus.emit("after_train_epoch")
        if self._emits("after_val") and not self.hook.schedules_validation:
            self._validate()
        if self._emits("after_save_checkpoint"):
            path = self.work_dir / "host.pt"
            path.write_bytes(b"weights")
            self.bus.emit("after_save_checkpoint", path=path, is_best=None)

    def _train_iteration(self, batch_idx: int, batch: Any) -> None:
        passed = {"batch_idx": batch_idx, "batch": batch if self.offered.batch else None}
        self._emit("before_train_iter", **passed)
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.inputs.append(batch[0].flatten()[0].item() if isinstance(batch[0], Tensor) else 0.0)
        self.during(self)
        values = (self.step or (lambda batch: self._step(self.run, batch)))(batch)
        loss = {"loss": values["loss"]} if self.offered.loss else {}
        self.bus.emit("log_scalars", values={"loop/value": 1.0})
        with self._hidden_gradients("after_train_iter"):
            self.bus.emit(
                "after_train_iter", outputs=values["outputs"] if self.offered.outputs else None, **passed, **loss
            )
        self.steps.append(self.updates)
        metrics = self.run.all_metrics()
        self.losses.append(metrics.get("train/loss", 1.0))
        self.accuracies.append(metrics.get("train/accuracy", 1.0))
        self.weights.append({name: value.clone() for name, value in self.model.state_dict().items()})

    def _step(self, run: Run, batch: Any) -> dict[str, Any]:
        images = batch[0] if isinstance(batch[0], Tensor) else batch["image"]
        output = self.model(images)
        loss = functional.cross_entropy(output, torch.arange(len(output)) % 2)
        outputs = {"accuracy": torch.tensor(0.5), "output": output.detach()}
        shown = {"loss": loss if self.offered.loss else None}
        self._emit("after_forward", **shown)
        every = run.get("accumulate", 1) if self.offered.accumulation else 1
        if run.iters_done % every == 0:
            self.optimizer.zero_grad()
        if not (run.should_skip_iter and "skip" in self.offered.requests):
            loss.backward()
            with self._hidden_gradients("after_backward"):
                self._emit("after_backward", **shown)
            if (run.iters_done + 1) % every == 0:
                self._update()
        return {"loss": loss.detach(), "outputs": outputs}

    def _update(self) -> None:
        self.updates += 1
        if self.counts_steps or (self.offered.optimizer and self._emits("before_optimizer_step")):
            with self._hidden_gradients("before_optimizer_step"):
                self.bus.emit("before_optimizer_step", optimizer=self.optimizer)
        if self.offered.optimizer:
            self.optimizer.step()
            return
        with torch.no_grad():  # an optimizer that torch does not know
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
        if self.counts_steps:
            self.bus.emit("after_optimizer_step", optimizer=self.optimizer)

    @contextmanager
    def _hidden_gradients(self, point: str) -> Iterator[None]:
        """Context manager without gradients, unless they are offered at a point."""
        gradients = [parameter.grad for parameter in self.model.parameters()]
        if point not in self.offered.gradients:
            for parameter in self.model.parameters():
                parameter.grad = None
        yield
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient

    def _validate(self) -> None:
        self.run.begin_validation()
        batch = next(iter(self._build_loader()[0])) if self.batches is None else self.batches[0]
        passed = {"batch_idx": 0, "batch": batch if self.offered.batch else None}
        if self._emits("after_val_iter"):
            self.bus.emit("before_val_iter", **passed)
            self.bus.emit("after_val_iter", **passed)
        self.run.end_validation(
            {"loss": 1.0 + self.run.iters_done, "accuracy": 0.5} if self._emits("after_val") else {}
        )

    def _emits(self, point: str) -> bool:
        return point not in self.offered.missing

    def _emit(self, point: str, **arguments: Any) -> None:
        if self._emits(point):
            self.bus.emit(point, **arguments)  # type: ignore[call-overload]

    # -- results ---------------------------------------------------------------------------------

    @property
    def logged(self) -> set[str]:
        """Names of the scalars that the hook has logged."""
        values = [event.arguments["values"] for event in self.bus.events if event.point == "log_scalars"]
        return {name for record in values for name in record} - {"loop/value"}

    def has_files(self, pattern: str) -> bool:
        """Return whether the work directory contains a file with such a name."""
        return any(self.work_dir.rglob(pattern))

    def has_changed(self, name: str) -> bool:
        """Return whether a tensor of the model differs after the first and the last iteration."""
        return not torch.equal(self.weights[0][name], self.weights[-1][name])


Check = Callable[[HostLoop], Any]
