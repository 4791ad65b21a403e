"""Another trainer that drives a run: what it can do, and what it does when hooks request it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from hookbus._utils.arguments import raise_config_error
from hookbus.lifecycle import POINTS
from hookbus.needs import REQUESTS, HostRequest

When = Literal["now", "iteration", "step", "epoch", "never"]
"""When a host carries out a request: at once, or after the current iteration, optimizer step or epoch."""

Checkpoints = Literal["host", "hookbus"]
"""Owner of the checkpoints: the host, which includes the state of the hooks, or the checkpoint hook."""

GRADIENT_POINTS = ("after_backward", "before_optimizer_step", "after_train_iter")
"""Points at which a loop of hookbus has gradients."""

UNCONDITIONAL_POINTS = frozenset(
    {"before_run", "before_train", "after_train_iter", "after_train", "after_run", "cleanup"}
    | {point for point in POINTS if point.startswith("log_")}
)
"""Points that the run or the hooks emit themselves, and `after_train_iter`, from which the run counts iterations."""


@dataclass(frozen=True)
class Capabilities:
    """What another trainer offers to the hooks of a run.

    Args:
        host: Name of the trainer, for messages.
        bridge: Import string of the subclass of `hookbus.bridge.Bridge`.
        missing: Points that are not emitted, mapped to the reason and to what to use instead. A trainer emits at least
            `after_train_iter`; the points of the run and of its training are emitted by the run.
        approximate: Points that are emitted with a difference, mapped to its description.
        requests: When each request is carried out. "never" for requests that are not listed.
        actions: Actions that the loop calls through the bus, such as `train_step`.
        accumulation: Whether the loop reads the number of micro-batches per optimizer step from the service
            `accumulate`, which hooks change.
        gradients: Points at which the gradients of the model are available.
        batch: Whether the points of training iterations receive the batch.
        outputs: Whether `after_train_iter` and `after_val_iter` receive the outputs of the model.
        loss: Whether `after_train_iter` receives the loss of the micro-batch.
        modules: Whether the layers of the model are modules of `torch.nn`.
        data: Whether hooks may modify the dataset and the sampler of the training loader.
        optimizer: Whether the optimizer is one of `torch.optim`.
        checkpoints: Supported owners of the checkpoints: "host", "hookbus".
        step: What the trainer counts as a step, for the documentation.

    Raises:
        ConfigError: If a point or a request does not exist, or a point is missing that every trainer provides.
    """

    host: str
    bridge: str
    missing: Mapping[str, str] = field(default_factory=dict)
    approximate: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[HostRequest, When] = field(default_factory=dict)
    actions: Collection[str] = ()
    accumulation: bool = False
    gradients: Collection[str] = GRADIENT_POINTS
    batch: bool = True
    outputs: bool = True
    loss: bool = True
    modules: bool = True
    data: bool = False
    optimizer: bool = True
    checkpoints: tuple[Checkpoints, ...] = ("host",)
    step: str = "an optimizer step"

    def __post_init__(self) -> None:
        """Check the names, so that a typo does not disable a check."""
        points = {*self.missing, *self.approximate, *self.gradients}
        problems: dict[str, Collection[str]] = {
            "unknown points": points - POINTS.keys(),
            "unknown requests": self.requests.keys() - REQUESTS.keys(),
            "points that cannot be missing": UNCONDITIONAL_POINTS & self.missing.keys(),
        }
        raise_config_error(
            f"Capabilities of {self.host}: {problem}, got {', '.join(sorted(names))}."
            for problem, names in problems.items()
            if names
        )

    def honors(self, request: str) -> bool:
        """Return whether a request is carried out at some time."""
        return any(name == request and when != "never" for name, when in self.requests.items())


class Host(Protocol):
    """Owner of the loop of a run, which carries out what hooks request. With multiple ranks, each rank calls it alike.

    A method that cannot act now records the request, and acts as soon as the trainer allows it.

    Attributes:
        capabilities: What the trainer offers.
        checkpoints: Owner of the checkpoints.
    """

    capabilities: ClassVar[Capabilities]
    checkpoints: Checkpoints

    @property
    def can_validate(self) -> bool:
        """Whether `validate` is possible, with the data that the trainer has."""

    def describe_lr_schedule(self) -> str:
        """Return what schedules the learning rate of the training, and how to train without it; "" if nothing does.

        For the end of a message: "the scheduler LambdaLR. Pass scheduler=None".
        """

    def compute_outputs(self, batch: Any) -> object:
        """Compute the outputs of the model for a batch of the training data on its device, in trial steps.

        Gradients are disabled, and the modes of the layers remain as they are.
        """

    def stop(self, reasons: Sequence[str]) -> None:
        """End the training.

        Args:
            reasons: Name of the hook and reason of each request.
        """

    def stop_epoch(self) -> None:
        """End the current epoch."""

    def save(self, reasons: Sequence[str]) -> None:
        """Save a checkpoint of the trainer.

        Args:
            reasons: Name of the hook and reason of each request.
        """

    def validate(self) -> None:
        """Validate, between `run.begin_validation` and `run.end_validation`."""
