"""The run as its parts see it: with the type `Run` itself, these modules would all depend on each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RunView(Protocol):
    """Attributes of a run that its parts read and set, see `hookbus.Run`."""

    accumulated: int
    boundary_state: Any
    bus: Any
    clock: Any
    device: Any
    exception: BaseException | None
    is_running: bool
    loss: Any
    metrics: Any
    mode: Any
    model: Any
    optimizer_events: Any
    outcome: Any
    pending: bool
    queue: Any
    records: dict[Any, Any]
    resumed: bool | None
    scaler: Any
    services: Any
    should_skip_iter: bool
    state: dict[str, Any]
    train_loader: Any
    trainer: Any
    training_data: Any
    trial: Any
    validating: bool
    validations: Any
    weights: Any

    @property
    def iters_done(self) -> int:
        """Number of completed iterations."""

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Optimizers by name."""

    @property
    def schedulers(self) -> Mapping[str, Any]:
        """Schedulers by name."""

    @property
    def logger(self) -> Any:
        """Logger of the run."""
