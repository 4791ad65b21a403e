"""The services that every run has, with their types: the list in the documentation and the types of `run.get`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from hookbus._run.run_logger import RunLogger
    from hookbus.checkpoint.saver import CheckpointSaver
    from hookbus.writers.writer import BusWriter, Visualizer

Directory = Literal["experiment_dir", "checkpoints_dir", "logs_dir", "visualization_dir"]


class Service(NamedTuple):
    """Service that hookbus defines.

    Attributes:
        type: Type, as in the signatures of `ServiceMethods`; "Any" for one that depends on the loop.
        doc: Description.
        is_part: Whether it is the attribute of the run with its name.
    """

    type: str
    doc: str
    is_part: bool = False


SERVICES: Mapping[str, Service] = {
    "trainer": Service("Any", "`Trainer` that executes the run; none in a custom loop", True),
    "config": Service("Any", "resolved configuration; `{}` if there is none", True),
    "model": Service("nn.Module", "model; an `nn.ModuleDict` of named models", True),
    "train_loader": Service("Any", "training loader", True),
    "val_loader": Service("Any", "validation loader, or a mapping of names to loaders", True),
    "test_loader": Service("Any", "test loader, or a mapping of names to loaders", True),
    "optimizer": Service("Any", "optimizer, or a read-only mapping of named optimizers", True),
    "scheduler": Service("Any", "learning-rate scheduler, or a read-only mapping of named schedulers", True),
    "device": Service("torch.device", "device of the model", True),
    "logger": Service("RunLogger", "logger of the run, a `logging.Logger` with the methods of `writer`", True),
    "writer": Service("BusWriter", "`hookbus.Writer` whose methods emit the `log_*` points"),
    "visualizer": Service("Visualizer", "the methods `add_*` of `SummaryWriter`, which emit the `log_*` points"),
    "experiment_dir": Service("Path", "work directory; none for a run without files"),
    "checkpoints_dir": Service("Path", "directory of the checkpoints, created on first use"),
    "logs_dir": Service("Path", "directory of logs, created on first use"),
    "visualization_dir": Service("Path", "directory of images, created on first use"),
    "checkpoint_saver": Service("CheckpointSaver", "hook that writes checkpoints; none without such a hook"),
}
"""Services by name, in the order of the documentation."""


class ServiceMethods:
    """Part of a run that provides services.

    Attributes:
        services: Services of the run.
    """

    __slots__ = ()  # `Run` has slots, and a base class without them would add a `__dict__`
    services: Any

    def provide(self, name: str, service: Any) -> None:
        """Register an object as a service, replacing any previous service of the same name.

        Args:
            name: Name of the service.
            service: Object that hooks receive from `run.get(name)`.
        """
        self.services.provide(name, service)

    @overload
    def get(self, name: Literal["model"], default: None = None) -> nn.Module | None: ...
    @overload
    def get(self, name: Literal["device"], default: None = None) -> torch.device | None: ...
    @overload
    def get(self, name: Literal["logger"], default: None = None) -> RunLogger: ...
    @overload
    def get(self, name: Literal["writer"], default: None = None) -> BusWriter: ...
    @overload
    def get(self, name: Literal["visualizer"], default: None = None) -> Visualizer: ...
    @overload
    def get(self, name: Directory, default: None = None) -> Path | None: ...
    @overload
    def get(self, name: Literal["checkpoint_saver"], default: None = None) -> CheckpointSaver | None: ...
    @overload
    def get(self, name: str, default: Any = None) -> Any: ...
    def get(self, name: str, default: Any = None) -> Any:
        """Return a service.

        Args:
            name: Name of the service.
            default: Value to return if no service of this name is registered.
        """
        return self.services.get(name, default)

    @overload
    def require(self, name: Literal["model"]) -> nn.Module: ...
    @overload
    def require(self, name: Literal["device"]) -> torch.device: ...
    @overload
    def require(self, name: Literal["logger"]) -> RunLogger: ...
    @overload
    def require(self, name: Literal["writer"]) -> BusWriter: ...
    @overload
    def require(self, name: Literal["visualizer"]) -> Visualizer: ...
    @overload
    def require(self, name: Directory) -> Path: ...
    @overload
    def require(self, name: Literal["checkpoint_saver"]) -> CheckpointSaver: ...
    @overload
    def require(self, name: str) -> Any: ...
    def require(self, name: str) -> Any:
        """Return a service, or raise if no service of this name is registered.

        Args:
            name: Name of the service.

        Raises:
            ServiceError: If no service of this name is registered. The message lists similar names.
        """
        return self.services.require(name)
