"""What a hook has registered with a run, which leaves with the hook when it is unregistered or disabled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from hookbus._run.run_view import RunView


def release_belongings(run: RunView, name: str, plugin: object) -> None:
    """Remove what a hook has registered with a run, when it was unregistered or disabled.

    These are services, contexts around validations, averaged weights, functions that modify the training data, windows
    of logged values, pending requests, and PyTorch hooks that are methods of the hook.

    Args:
        run: The run.
        name: Name of the hook.
        plugin: The hook.
    """
    owners = [run.services, run.validations.contexts, run.weights, run.training_data, run.metrics]
    if run.trainer is not None:
        owners.append(run.trainer.runs)
    for owner in owners:
        owner.release(name)
    _drop_requests(run, name, plugin)
    for handles, key in _iter_torch_hooks(run, plugin):
        handles.pop(key, None)


def _drop_requests(run: RunView, name: str, plugin: object) -> None:
    """Drop the pending requests of a hook and the saves that it would write, with a warning."""
    run.records = {key: record for key, record in run.records.items() if key[0] != name}
    for request in list(run.queue.waiting):
        if request.requested_by == name or request.details.get("saver") is plugin:
            run.queue.waiting.remove(request)
            run.logger.warning(
                "%s left the run before a request was processed: %s, requested by %s",
                name,
                request.kind.value,
                request,
            )


def _iter_torch_hooks(run: RunView, plugin: object) -> Iterator[tuple[Any, Any]]:
    """Yield the dict and the key of each PyTorch hook on model, loss and optimizers that is a method of a plugin."""
    modules = [part for module in (run.model, run.loss) if module is not None for part in module.modules()]
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    # PyTorch has no public API to list the hooks of an object (as of 2.13).
    attributes = chain.from_iterable(vars(owner).items() for owner in (*modules, *run.optimizers.values()))
    dicts = [value for name, value in attributes if name.endswith("_hooks")]
    dicts += [getattr(p, name) for p in parameters for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    for handles in dicts:
        if isinstance(handles, Mapping):
            yield from ((handles, key) for key, hook in list(handles.items()) if _is_method(hook, plugin))


def _is_method(hook: object, plugin: object) -> bool:
    """Return whether a function is a method of a plugin, or a `partial` of one."""
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(hook, "__self__", None) is plugin
