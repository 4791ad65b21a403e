"""The services of a run: named objects that it provides to hooks, and the types of `run.get`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

from hookbus._events.call_stack import current_run
from hookbus._run.work_dir import DIRECTORIES
from hookbus.errors import ServiceError, suggest_names
from hookbus.writers.writer import BusWriter, Visualizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookbus._run.run_bus import RunBus
    from hookbus._run.work_dir import WorkDir
    from hookbus.checkpoint.saver import CheckpointSaver

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
    "predict_loader": Service("Any", "prediction loader, or a mapping of names to loaders", True),
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

WRITERS: Mapping[str, Callable[[Any], Any]] = {"visualizer": Visualizer, "writer": BusWriter}

ACTIVE_RUNS: set[Any] = set()
"""Runs in progress, of which the logger uses the only one outside of events."""


class OwnedServices(dict[str, Any]):
    """Services by name. When a hook leaves, the services that it has replaced are restored."""

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[str, dict[str, Any]] = {}  # services by owner, by name of the service; the last one counts

    def provide(self, name: str, service: Any, owner: str) -> None:
        """Add a service of a hook, or of the loop with the owner "", whose services replace all earlier ones."""
        layers = self._layers.setdefault(name, {})
        if owner:
            layers.pop(owner, None)
        else:
            layers.clear()
        self[name] = layers[owner] = service

    def provide_all(self, services: OwnedServices) -> None:
        """Add the services of another object, with their owners."""
        for name, layers in services._layers.items():
            for owner, service in layers.items():
                self.provide(name, service, owner)

    def release(self, owner: str) -> None:
        """Remove the services of a hook."""
        for name, layers in list(self._layers.items()):
            if layers.pop(owner, self) is not self:
                if layers:
                    self[name] = next(reversed(layers.values()))
                else:
                    del self[name], self._layers[name]


class ServiceMethods:
    """Part of a run that provides services.

    Attributes:
        services: Services that hooks and the loop have registered.
        planned_directory: Work directory that the run will probably use, for the checks before it is acquired.
    """

    __slots__ = ()  # `Run` has slots, and a base class without them would add a `__dict__`
    bus: RunBus
    work_dir: WorkDir | None
    services: OwnedServices
    planned_directory: Path | None

    @property
    def logger(self) -> RunLogger:
        """Logger of the run. Its `write_scalar`, `write_image` and `write_config` are those of `writer`."""
        # One that the loop provides has no methods of a writer unless it defines them.
        return self.services.get("logger") or get_run_logger()

    def provide(self, name: str, service: Any) -> None:
        """Register an object as a service, replacing any previous service of the same name.

        Args:
            name: Name of the service.
            service: Object that hooks receive from `run.get(name)`.
        """
        self.services.provide(name, service, self.bus.pm.members.find_caller())

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
        if name in self.services:  # a registered service has precedence, also if it is None
            return self.services[name]
        service = self._get_part(name)
        return default if service is None else service

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
        service = self.get(name)
        if service is None:
            parts = [part for part in PARTS if getattr(self, part) is not None]
            directories = ("experiment_dir", *DIRECTORIES) if self.work_dir is not None else ()
            available = [*self.services, *parts, *WRITERS, *directories]
            raise ServiceError(f"This run has no service {name!r}.{suggest_names(name, available)}")
        return service

    def _get_part(self, name: str) -> Any:
        """Return a part of the run as a service; a directory is created on first use."""
        if name in PARTS:
            return getattr(self, name)
        if name in WRITERS:
            return WRITERS[name](self)
        if name != "experiment_dir" and name not in DIRECTORIES:
            return None
        folder = DIRECTORIES.get(name, "")
        if self.work_dir is None:
            return None if self.planned_directory is None else self.planned_directory / folder
        return self.work_dir.directory(folder) if folder else self.work_dir.path


class WriterMethods:
    """Methods of a writer, which emit the `log_*` points of the run whose event is in progress."""

    def write_scalar(self, name: str, value: Any, step: int | None = None) -> None:
        """Emit a number under its full name; `step` defaults to the current step."""
        _find_writer("write_scalar").write_scalar(name, value, step)

    def write_image(self, name: str, image: Any, step: int | None = None, caption: str | None = None) -> None:
        """Emit an image."""
        _find_writer("write_image").write_image(name, image, step, caption)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Emit the configuration of the run."""
        _find_writer("write_config").write_config(config)


class RunLogger(WriterMethods, logging.Logger):
    """A logger with the methods of a writer."""


def get_run_logger() -> RunLogger:
    """Return the logger "hookbus"."""
    logger = logging.getLogger("hookbus")
    if not isinstance(logger, WriterMethods):
        # The program may have created the logger before, also with a class of its own.
        logger.__class__ = type("RunLogger", (WriterMethods, type(logger)), {})
    return cast("RunLogger", logger)


def _find_writer(method: str) -> Any:
    """Return the writer of the run whose event is in progress, else of the only active run.

    Raises:
        ServiceError: If there is no such run.
    """
    run = current_run()
    if run is None:
        if len(ACTIVE_RUNS) != 1:
            raise ServiceError(
                f"run.logger.{method}: expected one active run, got {len(ACTIVE_RUNS)}. Call run.writer.{method} "
                "instead."
            )
        (run,) = ACTIVE_RUNS
    return run.get("writer")
