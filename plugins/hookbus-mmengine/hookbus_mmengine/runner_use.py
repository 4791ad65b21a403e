"""What a hook of MMEngine uses of its Runner, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from mmengine.hooks import Hook

from hookbus_mmengine.runner_view import RunnerView, TrainLoopView

REPLACEMENTS = {
    "CheckpointHook": "Use CheckpointHook of hookbus-checkpoint.",
    "EMAHook": "Use EMAHook of hookbus-ema.",
    "LoggerHook": "Use LoggerHook and JsonlHook of hookbus-logger.",
    "NaiveVisualizationHook": "Use VisualizationHook of hookbus-visualization.",
    "RuntimeInfoHook": "Use RuntimeInfoHook of hookbus-runtime.",
}
"""What to use in place of a hook of MMEngine that is refused."""

WITHOUT_EFFECT = {
    "DistSamplerSeedHook": "has no effect: the order of the data depends on the seed and the epoch.",
    "EMAHook": "exchanges the weights in checkpoints, whose weights are the raw ones in hookbus.",
}
"""Problems of hooks that use no missing part."""


def find_problem(cls: type) -> str:
    """Return why a hook of MMEngine cannot be used in a run; "" if it can.

    Args:
        cls: Class of the hook.
    """
    for base in cls.__mro__:
        if base.__module__.startswith("mmengine.") and base.__name__ in WITHOUT_EFFECT:
            return f"{WITHOUT_EFFECT[base.__name__]} {REPLACEMENTS.get(base.__name__, 'Remove it.')}"
    missing = {use for use in iter_uses(cls) if not _is_offered(use)}
    if not missing:
        return ""
    # Not the parts of a part that is missing as a whole.
    uses = ", ".join(f"runner.{use}" for use in sorted(missing) if use.partition(".")[0] not in missing - {use})
    advice = REPLACEMENTS.get(cls.__name__, "Write a hook of hookbus instead.")
    return f"needs {uses}, which a run of hookbus does not have. {advice}"


def iter_uses(cls: type) -> Iterator[str]:
    """Yield the attributes of `runner` in the source of a hook, such as `epoch` and `train_loop.stop_training`.

    Args:
        cls: Class of the hook. Classes without source, such as those of an interactive session, are left out.
    """
    for base in cls.__mro__[: cls.__mro__.index(Hook)]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (path := _get_path(node)):
                yield path + (" =" if isinstance(node.ctx, ast.Store) else "")


def _get_path(node: ast.expr) -> str:
    """Return the path of an attribute of `runner`; "" for another expression."""
    if not isinstance(node, ast.Attribute):
        return ""
    if isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "runner" else ""
    outer = _get_path(node.value)
    return f"{outer}.{node.attr}" if outer else ""


def _is_offered(use: str) -> bool:
    """Return whether a view of a run offers an attribute, or its assignment."""
    path, _, assignment = use.partition(" ")
    name, *inner = path.split(".")
    if name == "train_loop" and inner:
        return hasattr(TrainLoopView, inner[0])
    return not (assignment and not inner) and (hasattr(RunnerView, name) or name in RunnerView.__annotations__)
