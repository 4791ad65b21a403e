"""What a hook has registered with a run, which leaves with the hook when it is unregistered or disabled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from hookbus._run.run_view import RunView

__all__ = ["Belongings"]


class Belongings:
    """Follow the hooks of a run, and remove what belongs to a hook that leaves.

    These are functions registered by `bus.on`, services, contexts around validations, averaged weights, pending
    requests, and PyTorch hooks that are methods of the hook.

    Args:
        run: The run.
    """

    def __init__(self, run: RunView) -> None:
        self._run = run
        self._active: dict[str, object] = {}

    def update(self) -> None:
        """Remove what belongs to hooks that are no longer registered or enabled."""
        members, is_disabled = self._run.bus.pm.members, self._run.bus.table.failures.counts.is_disabled
        active = {name: member.plugin for name, member in members.items() if not is_disabled(name)}
        left, self._active = {n: p for n, p in self._active.items() if active.get(n) is not p}, active
        for name, plugin in left.items():
            self._release(name, plugin)

    def _release(self, name: str, plugin: object) -> None:
        run = self._run
        run.services.release(name)
        run.validations.contexts.release(name)
        run.weights.release(name)
        self._drop_requests(name, plugin)
        for handles, key in _iter_torch_hooks(run, plugin):
            handles.pop(key, None)
        for other, member in list(run.bus.pm.members.items()):
            if member.owner == name and other in run.bus.pm.members:
                run.bus.pm.unregister(name=other)

    def _drop_requests(self, name: str, plugin: object) -> None:
        """Drop the pending requests of a hook and the saves that it would write, with a warning."""
        run = self._run
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
