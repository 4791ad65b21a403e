"""Names and values that are logged during a validation or test."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from hookbus.errors import MetricError
from hookbus.metrics.windows import to_float, to_floats, to_widest_float

STAGES = ("train", "val", "test")
"""First parts of full names that denote where a value was measured."""


class ResultSink(Protocol):
    """Protocol of an object that receives the values logged in a part of a validation or test.

    Attributes:
        scope: That part.
    """

    scope: LogScope

    def add(self, name: str, value: Any) -> None:
        """Add a value under a name without prefix."""


class LogScope:
    """Part of a validation or test in which values are logged: one of its loaders, or the validation as a whole.

    Args:
        stage: "val" or "test".
        loader: Name of the loader; None for the validation as a whole, or for its only loader.
        loaders: Names of all loaders; empty if there is only one.

    Attributes:
        prefix: Start of the full names, such as `val/` or `val/<loader>/`.
    """

    def __init__(self, stage: str, loader: object = None, loaders: Collection[object] = ()) -> None:
        self._stage, self._loader = stage, loader
        self.prefix = get_prefix(stage, loader)
        is_whole = self.prefix == get_prefix(stage, None)
        self._refused = (*(f"{name}/" for name in STAGES), *(f"{n}/" for n in loaders if not is_whole and n != loader))

    def shorten(self, name: str) -> str:
        """Return a name without the prefix of this scope.

        Raises:
            MetricError: If the name has the prefix of training, of another stage or of another loader.
        """
        if "/" not in name:
            return name
        if name.startswith(self.prefix):
            return name[len(self.prefix) :]
        if name.startswith(self._refused):
            where = "validation" if self._stage == "val" else "test"
            part = where if self._loader in (None, "") else f"{where} loader {self._loader!r}"
            raise MetricError(
                f"run.log: the prefix does not denote the {part} in progress, got {name!r}. Log "
                f"{name.rpartition('/')[2]!r}, which becomes {self.prefix + name.rpartition('/')[2]!r}."
            )
        return name


class LoggedResults:
    """Values that are logged once in a validation or test, outside of its batches. Adding one does not synchronize.

    Args:
        scope: Part of the validation to which the values belong.
        taken: Full names of the results that exist already.
    """

    def __init__(self, scope: LogScope, taken: Collection[str] = ()) -> None:
        self.scope = scope
        self._taken = frozenset(taken)
        self._values: dict[str, Any] = {}  # by full name

    def add(self, name: str, value: Any) -> None:
        """Add a value under a name without prefix.

        Raises:
            MetricError: If the validation has a result of this name. Which of the two values monitors read would depend
                on the order of the hooks.
        """
        full = self.scope.prefix + name
        if full in self._taken or full in self._values:
            raise MetricError(
                f"run.log: the validation already has the result {full!r}, got a second value. Log it under another "
                "name."
            )
        # A copy, since a hook may modify its tensor in place.
        is_tensor = hasattr(value, "detach")
        self._values[full] = to_widest_float(value.detach()).reshape(()).clone() if is_tensor else to_float(value)

    def take(self) -> dict[str, float]:
        """Remove and return the values by full name, with one copy from each device."""
        values, self._values = self._values, {}
        return dict(zip(values, to_floats(list(values.values())), strict=True))


def get_prefix(stage: str, loader: object) -> str:
    """Return the start of the full names of the results of a loader; None or "" for the only loader."""
    return f"{stage}/" if loader in (None, "") else f"{stage}/{loader}/"


def check_training_name(name: str) -> None:
    """Raise if the full name of a value that is logged in training is that of a validation or test.

    Raises:
        MetricError: If the name starts with `val/` or `test/`.
    """
    stage = name.partition("/")[0]
    if stage != "train" and stage in STAGES:
        point = f"after_{stage}"
        raise MetricError(
            f"run.log: no {'validation' if stage == 'val' else 'test'} is in progress, got {name!r}. Log it between "
            f"before_{stage} and {point}, or pass it as metrics={{...}} when the loop emits {point}."
        )
