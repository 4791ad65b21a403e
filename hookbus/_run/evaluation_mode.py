"""Checks of runs of custom loops that only evaluate, by the argument `mode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from hookbus.errors import suggest_names
from hookbus.lifecycle import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator


def find_mode_problems(mode: object, **training: Any) -> Iterator[str]:
    """Yield a message for an unknown mode, and for each argument that has an effect on training only.

    Args:
        mode: Argument `mode`.
        training: Such arguments by name.
    """
    if mode not in get_args(Mode):
        yield f"mode: expected 'train', 'val' or 'test', got {mode!r}.{suggest_names(str(mode), get_args(Mode))}"
    elif mode != "train":
        for name, value in training.items():
            # A loader is not compared, since its class may define the comparison.
            if value is not None and value is not False:
                shown = repr(value) if isinstance(value, int) else type(value).__name__
                yield f"{name}: has no effect in a run of mode {mode!r}, got {shown}. Remove it."


def describe_mode(mode: Mode) -> str:
    """Return the reason for which a run that only evaluates refuses an operation of training, and what to do."""
    return (
        f"the run only evaluates, got mode {mode!r}. Iterate over the loader itself and emit before_{mode} and "
        f"after_{mode}, or open the run with mode='train'."
    )
