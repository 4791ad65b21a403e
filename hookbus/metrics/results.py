"""Read-only metric mappings and the resolution of metric names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from hookbus._utils.imports import suggest_if_close
from hookbus.errors import MetricError


class Metrics(dict[str, float]):
    """Read-only dict of metric values by full name. `accuracy` finds `val/accuracy` if it is unambiguous.

    Attributes:
        nonfinite: Number of NaN and infinite values that entered a mean, by full name; zero counts are omitted.
    """

    __slots__ = ("nonfinite",)

    def __init__(self, values: Mapping[str, float] | None = None, nonfinite: Mapping[str, int] | None = None) -> None:
        super().__init__(values or {})
        self.nonfinite = {name: count for name, count in (nonfinite or {}).items() if count}

    def __getitem__(self, name: str) -> float:
        return super().__getitem__(resolve_metric_name(name, self))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and len(find_metric_names(name, self)) == 1

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a metric, or `default` if the name is unknown or ambiguous.

        Args:
            name: Name, see `resolve_metric_name`.
            default: Value to return if there is no metric of this name. Default: None.
        """
        try:
            return self[name]
        except MetricError:
            return default

    def __repr__(self) -> str:
        return f"Metrics({super().__repr__()})"

    def __or__(self, other: Mapping[str, float]) -> Metrics:  # type: ignore[override]
        nonfinite = {**self.nonfinite, **getattr(other, "nonfinite", {})}
        return Metrics({**self, **other}, nonfinite)

    __ior__ = __or__  # type: ignore[assignment]  # as for a tuple: the name refers to a new object

    def __reduce__(self) -> tuple[Any, ...]:
        # The default protocol assigns the items one by one.
        return type(self), (dict(self), self.nonfinite)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "metrics: the dict of results does not support item assignment or removal. Log values by "
            "run.log(name=value), or modify a copy: dict(metrics)."
        )

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def resolve_metric_name(name: str, names: Iterable[str]) -> str:
    """Return the full name of a metric: `val/accuracy` for `val/accuracy`, `val_accuracy` or `accuracy`.

    Args:
        name: Full or short name.
        names: Full names of the available metrics.

    Raises:
        MetricError: If the name is unknown or ambiguous; the message lists the candidates.
    """
    known = list(names)
    matches = find_metric_names(name, known)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise MetricError(f"Ambiguous metric {name!r}: {' or '.join(sorted(matches))}. Use the full name.")
    if not known:
        raise MetricError(f"Unknown metric {name!r}. No metrics have been logged yet.")
    hint = suggest_if_close(name, (full.rpartition("/")[2] for full in known)) or suggest_if_close(name, known)
    raise MetricError(f"Unknown metric {name!r}.{hint} Available: {', '.join(sorted(known))}.")


def is_training_metric(name: str) -> bool:
    """Return whether a name denotes the mean of a training metric over an epoch: `train/loss` or `train_loss`.

    Args:
        name: Name of a metric in a setting such as `monitor`. Without this prefix it denotes a result of validations.
    """
    return name.startswith(("train/", "train_"))


def find_metric_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the full names of the metrics that a name denotes: none if it is unknown, several if it is ambiguous.

    Args:
        name: Full or short name.
        names: Full names of the available metrics.
    """
    known = list(names)
    if name in known:
        return [name]
    # Names with underscores are accepted as well, such as `val_loss`, which is common in other frameworks.
    flat = name.replace("/", "_")
    exact = [full for full in known if full.replace("/", "_") == flat]
    # A short name omits the prefix `val/`, or, if there is no such result, the prefix and the name of the loader.
    results = [full for full in known if full.partition("/")[2] == name]
    return exact or results or [full for full in known if full.rpartition("/")[2] == name]
