"""The services of a run: named objects that it provides to hooks, and the types of `run.get`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from hookbus._run.owned_services import OwnedServices
from hookbus._run.run_logger import RunLogger, get_run_logger, track_services
from hookbus.errors import ServiceError, suggest_names
from hookbus.writers.writer import BusWriter, Visualizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookbus._run.run import Run
    from hookbus.checkpoint.saver import CheckpointSaver

DIRECTORIES = {"checkpoints_dir": "checkpoints", "logs_dir": "logs", "visualization_dir": "visualization"}
"""Subdirectories of the work directory, by the name of their service."""

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


PARTS = tuple(name for name, service in SERVICES.items() if service.is_part)
"""Services that are attributes of the run."""


class Services:
    """Services that hooks and the loop register, and the parts of the run as services.

    Attributes:
        run: The run.
        planned_directory: Work directory that the run will probably use, for the checks before it is acquired.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.planned_directory: Path | None = None
        self._provided = OwnedServices()
        track_services(self)

    def provide(self, name: str, service: Any) -> None:
        """Register an object as a service, replacing any previous service of the same name."""
        self._provided.provide(name, service, self.run.bus.pm.members.find_caller())

    def provide_all(self, services: OwnedServices) -> None:
        """Register the services of the trainer, with the hooks that have provided them."""
        self._provided.provide_all(services)

    def release(self, owner: str) -> None:
        """Remove the services of a hook, and restore the ones that it has replaced."""
        self._provided.release(owner)

    def get_provided(self, name: str) -> Any:
        """Return the registered service of a name; None if there is none."""
        return self._provided.get(name)

    @property
    def logger(self) -> RunLogger:
        """Logger of the run; one that the loop provides has no methods of a writer unless it defines them."""
        return self.get_provided("logger") or get_run_logger()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a service, or `default` if no service of this name is available."""
        if name in self._provided:  # a registered service has precedence, also if it is None
            return self._provided[name]
        service = self._get_part(name)
        return default if service is None else service

    def require(self, name: str) -> Any:
        """Return a service, or raise if no service of this name is available.

        Raises:
            ServiceError: If no service of this name is available. The message lists similar names.
        """
        service = self.get(name)
        if service is None:
            parts = [part for part in PARTS if getattr(self.run, part) is not None]
            directories = ("experiment_dir", *DIRECTORIES) if self.run.work_dir is not None else ()
            available = [*self._provided, *parts, "visualizer", "writer", *directories]
            raise ServiceError(f"This run has no service {name!r}.{suggest_names(name, available)}")
        return service

    def _get_part(self, name: str) -> Any:
        """Return a part of the run as a service."""
        if name in PARTS:
            return getattr(self.run, name)
        if name == "visualizer":
            return Visualizer(self.run)
        if name == "writer":
            return BusWriter(self.run)
        return self._get_directory(name)

    def _get_directory(self, name: str) -> Path | None:
        """Return a directory of the run, which is created on first use once the run has a work directory."""
        work_dir, planned = self.run.work_dir, self.planned_directory
        if work_dir is None:
            is_directory = name in ("experiment_dir", *DIRECTORIES)
            return planned / DIRECTORIES.get(name, "") if planned is not None and is_directory else None
        if name == "experiment_dir":
            return work_dir.path
        return work_dir.directory(DIRECTORIES[name]) if name in DIRECTORIES else None


class ServiceMethods:
    """Part of a run that provides services.

    Attributes:
        services: Services of the run.
    """

    __slots__ = ()  # `Run` has slots, and a base class without them would add a `__dict__`
    services: Services

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
