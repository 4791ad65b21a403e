"""Detection of abnormal gradients, with messages.

Usable without hookbus.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from hookbus_gradient_flow.statistics import Gradient

ProblemType = Literal["missing", "not finite", "vanishing", "exploding"]

VANISHING = 1e-8
"""Gradients whose absolute values are all below this value are vanishing: they barely change their parameter."""

EXPLODING = 1e3
"""Gradients whose L2 norm is above this value are exploding: without clipping, a step corrupts their parameter."""

MAX_NAMES = 5
"""Maximum number of names in a message."""

MESSAGES: dict[ProblemType, tuple[str, str]] = {
    "missing": (
        "{have} no gradient",
        "The loss does not depend on {them}. Use {them}, freeze {them}, or remove {them}",
    ),
    "not finite": (
        "{have} NaN or infinity in {their} gradient",
        "Check inputs, loss and learning rate; torch.autograd.set_detect_anomaly(True) locates the operation",
    ),
    "vanishing": (
        "{have} a vanishing gradient",
        f"All absolute values are below {VANISHING:g}. Check for saturated activations and the initialization",
    ),
    "exploding": (
        "{have} an exploding gradient",
        f"{{Their}} norm is above {EXPLODING:g}. Clip gradients with `clip_grad_norm`, or lower the learning rate",
    ),
}
"""Problem and remedy by type of problem."""
ALL_FROZEN_MESSAGE = "all selected parameters are frozen (`requires_grad=False`). Unfreeze them, or change `targets`."
SINGULAR = {"have": "has", "them": "it", "their": "its", "Their": "Its"}
PLURAL = {word: word for word in SINGULAR}


def find_problems(gradients: Iterable[Gradient], missing: Iterable[str]) -> dict[ProblemType, dict[str, float]]:
    """Return the L2 norms of abnormal gradients by parameter name, by type of problem.

    The norm of a missing gradient is NaN. Types without a parameter are omitted.
    """
    problems: defaultdict[ProblemType, dict[str, float]] = defaultdict(dict)
    for name in missing:
        problems["missing"][name] = math.nan
    for gradient in gradients:
        if (problem_type := _classify(gradient)) is not None:
            problems[problem_type][gradient.name] = gradient.l2
    return problems


def format_problem(problem_type: ProblemType, norms: dict[str, float], step: int) -> str:
    """Return the message of a problem: step, number and names of the parameters with their norms, and remedy."""
    problem, advice = (text.format(**(SINGULAR if len(norms) == 1 else PLURAL)) for text in MESSAGES[problem_type])
    number = "1 parameter" if len(norms) == 1 else f"{len(norms)} parameters"
    return f"step {step}: {number} {problem}: {_format_names(problem_type, norms)}. {advice}."


class ProblemReporter:
    """Reporter of gradient problems that the previous measurement did not have."""

    def __init__(self) -> None:
        self._reported: set[tuple[ProblemType, str]] = set()
        self._was_frozen = False

    def update(self, gradients: Sequence[Gradient], missing: Sequence[str], step: int) -> list[str]:
        """Return a message for each type of problem with new parameters, and one if all parameters are frozen."""
        problems = find_problems(gradients, missing)
        new = {
            problem_type: {name: norm for name, norm in norms.items() if (problem_type, name) not in self._reported}
            for problem_type, norms in problems.items()
        }
        # Replaced, not extended: a problem that disappears and returns is reported again.
        self._reported = {(problem_type, name) for problem_type, norms in problems.items() for name in norms}
        was_frozen, self._was_frozen = self._was_frozen, not gradients and not missing
        all_frozen = [f"step {step}: {ALL_FROZEN_MESSAGE}"] if self._was_frozen and not was_frozen else []
        return all_frozen + [format_problem(problem_type, norms, step) for problem_type, norms in new.items() if norms]


def _classify(gradient: Gradient) -> ProblemType | None:
    if not math.isfinite(gradient.max):
        return "not finite"
    if gradient.max < VANISHING:
        return "vanishing"
    return "exploding" if gradient.l2 > EXPLODING else None


def _format_names(problem_type: ProblemType, norms: dict[str, float]) -> str:
    has_norm = problem_type in ("vanishing", "exploding")
    names = [f"{name} ({norm:.2g})" if has_norm else name for name, norm in norms.items()]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
