"""The logger of hookbus with the methods of a writer: `run.logger.write_scalar("loss", loss, step)`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol, cast
from weakref import WeakSet

from hookbus._events.call_stack import current_run
from hookbus.errors import ServiceError


class RunServices(Protocol):
    """Services of a run, see `hookbus._run.services`."""

    run: Any


_services: WeakSet[RunServices] = WeakSet()


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


def track_services(services: RunServices) -> None:
    """Register the services of a run, so that the logger finds the active run outside of events."""
    _services.add(services)


def _find_writer(method: str) -> Any:
    """Return the writer of the run whose event is in progress, else of the only active run.

    Raises:
        ServiceError: If there is no such run.
    """
    run = current_run()
    if run is None:
        active = [services.run for services in _services if services.run.is_running]
        if len(active) != 1:
            raise ServiceError(
                f"run.logger.{method}: expected one active run, got {len(active)}. Call run.writer.{method} instead."
            )
        run = active[0]
    return run.get("writer")
