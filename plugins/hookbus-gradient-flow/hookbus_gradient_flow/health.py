"""What is wrong with gradients, in sentences.

Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from hookbus_gradient_flow.flow import Gradient

__all__ = ["EXPLODING", "VANISHING", "Complaints", "Kind", "ailing", "sentence"]

Kind = Literal["missing", "not finite", "vanishing", "exploding"]

VANISHING = 1e-8
"""A gradient whose largest absolute value is below this hardly moves its parameter, whatever the optimizer."""

EXPLODING = 1e3
"""A gradient whose L2 norm is above this is a step that ruins its parameter, unless it is clipped."""

SHOWN = 5
"""So many names stand in one sentence."""

WORDS: dict[Kind, tuple[str, str]] = {
    "missing": (
        "{have} no gradient",
        "Nothing that the loss depends on uses {them}: use {them}, freeze {them}, or drop {them}",
    ),
    "not finite": (
        "{have} NaN or infinity in {their} gradient",
        "Look at inputs, loss and learning rate; torch.autograd.set_detect_anomaly(True) shows where it begins",
    ),
    "vanishing": (
        "{have} a gradient that is vanishing",
        f"Nothing in it reaches {VANISHING:g}: look for activations that saturate, and at the initial values",
    ),
    "exploding": (
        "{have} a gradient that is exploding",
        f"{{Their}} norm is above {EXPLODING:g}: clip {{them}} (clip_grad_norm), or lower the learning rate",
    ),
}
"""By kind: what is so, and what to do."""
NOTHING = "every parameter that is looked at is frozen (requires_grad is off): there is nothing to show."
ONE = {"have": "has", "them": "it", "their": "its", "Their": "Its"}
SEVERAL = {word: word for word in ONE}


def ailing(gradients: Iterable[Gradient], missing: Iterable[str]) -> dict[Kind, dict[str, float]]:
    """The parameters with a gradient that is not as it should be, by what it is.

    Args:
        gradients: those that are there.
        missing: the parameters without one.

    Returns:
        By kind, the L2 norms by name; kinds that no gradient has are left out. NaN for missing ones.
    """
    found: dict[Kind, dict[str, float]] = {}
    for name in missing:
        found.setdefault("missing", {})[name] = math.nan
    for each in gradients:
        kind = _kind(each)
        if kind is not None:
            found.setdefault(kind, {})[each.name] = each.l2
    return found


def sentence(kind: Kind, norms: dict[str, float], step: int) -> str:
    """Say it: how many, which, and what to do.

    Args:
        kind: what they are.
        norms: the L2 norms by name.
        step: the update.
    """
    what, advice = (text.format(**(ONE if len(norms) == 1 else SEVERAL)) for text in WORDS[kind])
    number = "1 parameter" if len(norms) == 1 else f"{len(norms)} parameters"
    return f"step {step}: {number} {what}: {_listed(kind, norms)}. {advice}."


class Complaints:
    """Says what is wrong with gradients and was not when they were looked at before."""

    def __init__(self) -> None:
        self._said: set[tuple[Kind, str]] = set()
        self._was_empty = False

    def about(self, gradients: Sequence[Gradient], missing: Sequence[str], step: int) -> list[str]:
        """A sentence for each kind of which there is something new, and one where there is nothing to look at.

        Args:
            gradients: those that are there.
            missing: the parameters without one.
            step: the update.
        """
        found = ailing(gradients, missing)
        fresh = {
            kind: {name: norm for name, norm in norms.items() if (kind, name) not in self._said}
            for kind, norms in found.items()
        }
        self._said = {(kind, name) for kind, norms in found.items() for name in norms}
        was_empty, self._was_empty = self._was_empty, not gradients and not missing
        nothing = [f"step {step}: {NOTHING}"] if self._was_empty and not was_empty else []
        return nothing + [sentence(kind, norms, step) for kind, norms in fresh.items() if norms]


def _kind(gradient: Gradient) -> Kind | None:
    if not math.isfinite(gradient.max):
        return "not finite"
    if gradient.max < VANISHING:
        return "vanishing"
    return "exploding" if gradient.l2 > EXPLODING else None


def _listed(kind: Kind, norms: dict[str, float]) -> str:
    shown: Sequence[str] = [
        f"{name} ({norm:.2g})" if kind in ("vanishing", "exploding") else name
        for name, norm in list(norms.items())[:SHOWN]
    ]
    more = len(norms) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
