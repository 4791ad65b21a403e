"""Comparison of what hooks need with what another trainer offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hookbus._run.host import Capabilities, Checkpoints
from hookbus._utils.packages import package_label
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.errors import ConfigError
from hookbus.hook import Hook

NEEDS = {
    "batch": "the batch of each iteration",
    "outputs": "the outputs of the model",
    "loss": "the loss of each iteration",
    "modules": "layers that are modules of torch.nn",
    "data": "a training loader whose data it may modify",
    "optimizer": "an optimizer of torch.optim",
}
"""Descriptions of the needs that are fields of both `Needs` and `Capabilities`."""


def find_host_errors(
    hooks: Mapping[str, object], capabilities: Capabilities, checkpoints: Checkpoints
) -> Iterator[ConfigError]:
    """Yield the errors of hooks that need what a host does not offer, or that conflict with its checkpoints.

    Args:
        hooks: Hooks by instance name. Plugins that are not derived from `Hook` declare no needs.
        capabilities: What the host offers.
        checkpoints: Owner of the checkpoints.
    """
    for name, hook in hooks.items():
        if not isinstance(hook, Hook):
            continue
        problems = list(find_unmet_needs(hook, capabilities))
        if checkpoints == "host" and isinstance(hook, CheckpointSaver):
            fix = ", or pass checkpoints='hookbus'" if "hookbus" in capabilities.checkpoints else ""
            problems.append(
                f"writes checkpoints, but {capabilities.host} saves the state of the hooks in its own. Remove the "
                f"hook{fix}."
            )
        if problems:
            yield ConfigError(f"{format_hook(name, hook)}: {problem}" for problem in problems)


def format_hook(name: str, hook: object) -> str:
    """Return the name and the package of a hook, for messages."""
    return f"hook {name!r} ({package_label(hook)})"


def find_unmet_needs(hook: Hook, capabilities: Capabilities) -> Iterator[str]:
    """Yield a problem for each need of a hook that a host does not meet."""
    needs, host = hook.needs, capabilities.host
    for need in needs.points:
        alternatives = (need,) if isinstance(need, str) else need
        if all(point in capabilities.missing for point in alternatives):
            reason = capabilities.missing[alternatives[0]]
            yield f"requires {' or '.join(alternatives)}, which {host} does not emit: {reason}"
    if needs.gradients and not set(needs.gradients) & set(capabilities.gradients):
        yield f"requires gradients at {' or '.join(needs.gradients)}, where {host} has none."
    for need_name, description in NEEDS.items():
        if getattr(needs, need_name) and not getattr(capabilities, need_name):
            yield f"requires {description}, which {host} does not provide."
    if hook.schedules_validation and not capabilities.honors("validation"):
        yield f"schedules validations, but {host} validates on its own schedule only. Set that schedule instead."
    if hook.skips_iterations and not capabilities.honors("skip"):
        yield f"skips iterations, which {host} cannot do."


def find_differences(hook: Hook, capabilities: Capabilities) -> Iterator[str]:
    """Yield the differences of the points of a hook that a host emits approximately, or does not emit."""
    for point in hook.get_triggered_stages():
        if point in capabilities.approximate:
            yield f"{point}: {capabilities.approximate[point]}"
        elif point in capabilities.missing:
            yield f"{point} is not emitted: {capabilities.missing[point]}"
