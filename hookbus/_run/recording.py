"""The one point that everything logged passes: `log_scalars`, with the means of training and the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hookbus.metrics.results import Metrics

if TYPE_CHECKING:
    from hookbus._events.bus import EventBus


@dataclass(frozen=True, slots=True)
class LogSource:
    """Source of the values of a `log_scalars` event that no hook emitted.

    Attributes:
        stage: "train" for the means of training, "val" or "test" for results.
        dataloader_name: Name of the loader if there are multiple loaders.
    """

    stage: Literal["train", "val", "test"]
    dataloader_name: str | None = None


class Recording:
    """Emit `log_scalars` for the means of training and for the results of validations and tests.

    Hooks with `records_means` write the means of training on their own schedules. One record is emitted per step: of
    those delivered together, that of the shortest window.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._values: Metrics | None = None
        self._source: LogSource | None = None
        self._last_step = -1  # of the last record of training
        self._observers: bool | None = None  # whether a hook that records no means listens; None until it is known

    def on_hooks_changed(self) -> None:
        """Forget which hooks listen; called after hooks were registered, unregistered or disabled."""
        self._observers = None

    def get_source(self, values: object) -> LogSource | None:
        """Return the source of the values of the event in progress; None if a hook or the loop emitted them."""
        return self._source if values is self._values and values is not None else None

    def publish(self, values: Mapping[str, float], step: int, source: LogSource) -> None:
        """Emit values, read-only and as floats; no event for an empty mapping."""
        if not values:
            return
        outer = self._values, self._source
        self._values, self._source = Metrics({name: float(value) for name, value in values.items()}), source
        try:
            self._bus.fire("log_scalars", values=self._values, step=step)
        finally:
            self._values, self._source = outer

    def publish_means(
        self, records: Iterable[tuple[str, int, Metrics]], step: int, get_more: Callable[[], Mapping[str, float]]
    ) -> None:
        """Emit the record of the shortest window among those that hooks with `records_means` have requested.

        Args:
            records: Name of the hook, number of iterations in the window, and means.
            step: Number of optimizer steps.
            get_more: Function that returns the further values of a record, such as learning rates.
        """
        # A record of the same step that is delivered later, such as at the end of an epoch, covers the same iterations.
        if step == self._last_step or not self._is_observed():
            return
        hooks = self._bus.hooks
        own = [(length, means) for name, length, means in records if _records_means(hooks.get(name))]
        if own:
            self._last_step = step
            _, means = min(own, key=lambda record: record[0])
            self.publish({**means, **get_more()}, step, LogSource("train"))

    def _is_observed(self) -> bool:
        """Return whether a hook listens that does not write the records itself."""
        if self._observers is None:
            listeners = self._bus.table.listeners("log_scalars", self._bus.current)
            self._observers = not all(_records_means(listener.plugin) for listener in listeners)
        return self._observers


def _records_means(plugin: object) -> bool:
    """Return whether a plugin writes the means of training on its own schedule."""
    return bool(getattr(plugin, "records_means", False))
