"""Comparison of what hooks need with what another trainer offers.

`bus.attach`, `bus.open(host=...)`, the registration of a hook during a run and `hookbus check --host` report the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import getattr_static
from typing import TYPE_CHECKING

from hookbus._run.host import Capabilities, Checkpoints
from hookbus._utils.packages import package_label
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.errors import ConfigError
from hookbus.hook import Hook
from hookbus.lifecycle import POINTS
from hookbus.needs import REQUESTS, as_alternatives

if TYPE_CHECKING:
    from hookbus._run.run import Run

PROVIDED = {
    "batch": "the batch of each iteration",
    "outputs": "the outputs of the model",
    "loss": "the loss of each iteration",
    "modules": "layers that are modules of torch.nn",
    "data": "a training loader whose data it may modify",
    "optimizer": "an optimizer of torch.optim",
}
"""Descriptions of the needs that are fields of both `Needs` and `Capabilities`."""

UNCONNECTED = {
    point: "a prediction is no part of a training. Predict with hookbus.Trainer."
    for point in POINTS
    if "predict" in point
}
"""Points that no host emits, mapped to the reason and to what to use instead."""


@dataclass(frozen=True)
class HostReport:
    """What a hook can do in another trainer.

    Attributes:
        problems: Reasons why the hook cannot work, and what to do instead.
        differences: Points of the hook that are missing or emitted with a difference, mapped to the description.
    """

    problems: list[str]
    differences: dict[str, str]

    @property
    def status(self) -> str:
        """Summary: "works", "works approximately" or "cannot work"."""
        if self.problems:
            return "cannot work"
        return "works approximately" if self.differences else "works"


def compare_hooks(
    hooks: Mapping[str, object],
    capabilities: Capabilities,
    checkpoints: Checkpoints,
    *,
    has_validation: bool = False,
) -> dict[str, HostReport]:
    """Compare hooks with what a host offers.

    Args:
        hooks: Hooks by instance name. Plugins that are not derived from `Hook` declare no needs and are omitted.
        capabilities: What the host offers.
        checkpoints: Owner of the checkpoints.
        has_validation: Whether the run has a validation function, which replaces the validation of the host.
    """
    own = {name: hook for name, hook in hooks.items() if isinstance(hook, Hook)}
    has_validation = has_validation or any(hook.validation_fn is not None for hook in own.values())
    return {
        name: HostReport(
            [
                *_find_unmet_needs(hook, capabilities),
                *_find_unmet_declarations(hook, capabilities, has_validation=has_validation),
                *_find_second_saver(hook, capabilities, checkpoints),
            ],
            dict(_iter_differences(hook, capabilities)),
        )
        for name, hook in own.items()
    }


def find_host_errors(
    hooks: Mapping[str, object],
    capabilities: Capabilities,
    checkpoints: Checkpoints,
    *,
    has_validation: bool = False,
) -> Iterator[ConfigError]:
    """Yield the errors of hooks that need what a host does not offer, or that conflict with its checkpoints.

    The arguments are those of `compare_hooks`.
    """
    for name, report in compare_hooks(hooks, capabilities, checkpoints, has_validation=has_validation).items():
        if report.problems:
            yield ConfigError(f"{format_hook(name, hooks[name])}: {problem}" for problem in report.problems)


def find_second_lr_schedules(run: Run, hooks: Mapping[str, Hook]) -> Iterator[ConfigError]:
    """Yield the errors of hooks that set the learning rate in a training whose host schedules it as well.

    In a run with several optimizers they may schedule different ones, so that none is an error.
    """
    names = [name for name, hook in hooks.items() if hook.schedules_learning_rate]
    if not names or len(run.optimizers) > 1:
        return
    if schedule := run.external_lr_schedule:
        for name in names:
            yield ConfigError(
                [f"{format_hook(name, hooks[name])}: sets the learning rate, as does {schedule}, or remove the hook."]
            )


def report_differences(run: Run, names: Iterable[str]) -> None:
    """Log, in one message, the points of hooks that the host of a run emits with a difference or does not emit."""
    if run.host is None:
        return
    capabilities: Capabilities = run.host.capabilities
    hooks = {name: run.bus.hooks[name] for name in names}
    readers: dict[str, list[str]] = {}
    for name, hook in hooks.items():
        for difference in dict(_iter_differences(hook, capabilities)).values() if isinstance(hook, Hook) else ():
            readers.setdefault(difference, []).append(repr(name))
    if readers:
        lines = [
            f"{difference} (hook{'s' * (len(names) > 1)} {', '.join(names)})" for difference, names in readers.items()
        ]
        run.logger.info("%s differs from a loop of hookbus:\n  %s", capabilities.host, "\n  ".join(lines))


def format_hook(name: str, hook: object) -> str:
    """Return the name and the package of a hook, for messages."""
    return f"hook {name!r} ({package_label(hook)})"


def _find_unmet_needs(hook: Hook, capabilities: Capabilities) -> Iterator[str]:
    """Yield a problem for each entry of `Hook.needs` that a host does not meet."""
    needs, host, fix = hook.needs, capabilities.host, _advise(hook)
    for points in map(as_alternatives, needs.points):
        missing = {**UNCONNECTED, **capabilities.missing}
        if all(point in missing for point in points):
            yield f"requires {' or '.join(points)}, which {host} does not emit: {missing[points[0]]}"
    for request in needs.requests:
        if not capabilities.honors(request):
            yield f"requires a {REQUESTS[request]} on request, which {host} does not carry out. {fix}"
    for action in needs.actions:
        if action not in capabilities.actions:
            yield f"wraps the action {action}, which {host} does not call through the bus. {fix}"
    if needs.gradients and not set(needs.gradients) & set(capabilities.gradients):
        yield f"requires gradients at {' or '.join(needs.gradients)}, where {host} has none. {fix}"
    for need, description in PROVIDED.items():
        if getattr(needs, need) and not getattr(capabilities, need):
            yield f"requires {description}, which {host} does not provide. {fix}"


def _find_unmet_declarations(hook: Hook, capabilities: Capabilities, *, has_validation: bool) -> Iterator[str]:
    """Yield a problem for each other declaration of a hook that a host does not meet."""
    host = capabilities.host
    if hook.requires_validation and "after_val" in capabilities.missing:
        yield f"requires validations, but {host} does not emit after_val: {capabilities.missing['after_val']}"
    if hook.schedules_validation and not (has_validation or capabilities.honors("validation")):
        yield f"schedules validations, but {host} validates on its own schedule only. Set that schedule instead."
    if hook.skips_iterations and not capabilities.honors("skip"):
        yield f"skips iterations, which {host} cannot do. {_advise(hook)}"
    if hook.schedules_accumulation and not capabilities.accumulation:
        yield f"changes the number of micro-batches per optimizer step, which {host} sets itself. Remove the hook."


def _find_second_saver(hook: Hook, capabilities: Capabilities, checkpoints: Checkpoints) -> Iterator[str]:
    if checkpoints == "host" and isinstance(hook, CheckpointSaver):
        fix = ", or pass checkpoints='hookbus'" if "hookbus" in capabilities.checkpoints else ""
        host = capabilities.host
        yield f"writes checkpoints, but {host} saves the state of the hooks in its own. Remove the hook{fix}."


def _advise(hook: Hook) -> str:
    """Return what to do about a need: it may depend on the settings if it is a property."""
    is_fixed = not isinstance(getattr_static(type(hook), "needs"), property)
    return "Remove the hook." if is_fixed else "Remove the hook, or the settings that require it."


def _iter_differences(hook: Hook, capabilities: Capabilities) -> Iterator[tuple[str, str]]:
    """Yield the points of a hook that a host emits with a difference, or does not emit, and the description."""
    # A host trains: the points of tests and predictions belong to other runs.
    for point in (name for name in hook.get_triggered_stages() if not {"test", "predict"} & {*name.split("_")}):
        if point in capabilities.approximate:
            yield point, f"{point}: {capabilities.approximate[point]}"
        elif point in capabilities.missing:
            yield point, f"{point} is not emitted: {capabilities.missing[point]}"
