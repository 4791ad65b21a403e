"""Events of a validation or test in Lightning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookbus_lightning.results import split_results, to_outputs

if TYPE_CHECKING:
    from hookbus import HookBus


class Evaluation:
    """A validation or test, which evaluates its loaders one after another.

    Args:
        bus: Bus that emits the events.
        kind: "val" or "test".
        names: Names of the loaders; empty for a single one.
        get_results: Function that returns the results so far, without prefix.
    """

    def __init__(
        self, bus: HookBus, kind: str, names: Sequence[str], get_results: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._emit_event: Callable[..., None] = bus.emit  # untyped: the names of the points are composed
        self._kind, self._names, self._get_results = kind, names, get_results
        self._loader: int | None = None

    def begin_batch(self, batch: Any, batch_idx: int, loader: int) -> None:
        """Begin a batch, and its loader if it is another one."""
        if loader != self._loader:
            self.end_loader()
            self._loader = loader
            self._emit("before", "_epoch")
        self._emit("before", "_iter", batch_idx=batch_idx, batch=batch)

    def end_batch(self, returned: Any, batch: Any, batch_idx: int) -> None:
        """End a batch.

        Args:
            returned: What `validation_step` or `test_step` has returned.
            batch: The batch.
            batch_idx: Its index within its loader.
        """
        self._emit("after", "_iter", batch_idx=batch_idx, batch=batch, outputs=to_outputs(returned))

    def end_loader(self) -> None:
        """End the loader that has begun, with its results."""
        if self._loader is not None:
            whole, loaders = split_results(self._get_results(), self._names)
            self._emit("after", "_epoch", metrics=loaders[self._names[self._loader]] if self._names else whole)
            self._loader = None

    def get_whole(self) -> Mapping[str, Any]:
        """Return the results that belong to no loader."""
        return split_results(self._get_results(), self._names)[0] if self._names else {}

    def _emit(self, side: str, part: str, **arguments: Any) -> None:
        name = self._names[self._loader] if self._names and self._loader is not None else None
        self._emit_event(f"{side}_{self._kind}{part}", dataloader_name=name, **arguments)
