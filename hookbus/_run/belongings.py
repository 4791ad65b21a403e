"""What a hook has registered, which leaves with the hook when it is unregistered or disabled.

PyTorch does not list its hooks, but creates a `RemovableHandle` for each one. The constructor of this class is extended
while a run is in progress, to record the handles that hooks create.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from hookbus._events.bus import EventBus


def release_belongings(run: Any, name: str, plugin: object) -> None:
    """Remove what a hook has registered with a run, when it was unregistered or disabled.

    These are services, contexts around validations, averaged weights, functions that modify the training data, windows
    of logged values, and pending requests. The bus removes other hooks, points and PyTorch hooks.

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


def _drop_requests(run: Any, name: str, plugin: object) -> None:
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


REGISTERING = frozenset(
    {
        "torch._tensor",
        "torch.autograd.function",
        "torch.autograd.graph",
        "torch.nn.modules.module",
        "torch.optim.optimizer",
    }
)
"""Modules of PyTorch that register hooks for their callers."""

MIN_PRUNED = 256
"""Number of handles of a hook from which those of tensors and modules that no longer exist are discarded."""

Removal = Callable[[], object]


class TorchHooks:
    """PyTorch hooks by the hook that has registered them.

    Args:
        bus: Bus of the hooks.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._handles: dict[str, list[RemovableHandle]] = {}
        self._limits: dict[str, int] = {}

    def watch(self) -> None:
        """Record handles from now on. No effect while torch is not imported. Idempotent."""
        if "torch.utils.hooks" in sys.modules:
            with _lock:
                if not _watching:
                    _extend_handles()
                _watching.add(self)

    def stop(self) -> None:
        """Record no further handles. Idempotent."""
        with _lock:
            if self in _watching:
                _watching.remove(self)
                if not _watching:
                    _restore_handles()

    def record(self, handle: RemovableHandle) -> None:
        """Record a handle that is being created, if a hook of the bus creates it during a run."""
        owner = self._bus.pm.members.find_caller() if self._bus.current.is_running else ""
        if owner:
            handles = self._handles.setdefault(owner, [])
            if len(handles) >= self._limits.get(owner, MIN_PRUNED):
                handles[:] = [handle for handle in handles if handle.id in (handle.hooks_dict_ref() or ())]
                self._limits[owner] = max(2 * len(handles), MIN_PRUNED)
            handles.append(handle)

    def release(self, name: str, plugin: object, run: Any) -> list[Removal]:
        """Disable the PyTorch hooks that a hook has registered, or that are its methods.

        Args:
            name: Name of the hook.
            plugin: The hook.
            run: Run whose modules and optimizers may have methods of the hook as PyTorch hooks.

        Returns:
            Functions that remove them. They must not be called within an event, because PyTorch iterates over the hooks
            of an optimizer while it calls them, and such a hook may emit the event.
        """
        self._limits.pop(name, None)
        removals: list[Removal] = []
        for handle in self._handles.pop(name, ()):
            hooks = handle.hooks_dict_ref() or {}
            if handle.id in hooks:
                hooks[handle.id] = _do_nothing
                removals.append(handle.remove)
        for hooks, key in _iter_methods(run, plugin):
            hooks[key] = _do_nothing
            removals.append(partial(hooks.pop, key, None))
        return removals


_watching: WeakSet[TorchHooks] = WeakSet()
_lock = threading.Lock()
_extended: list[Callable[..., None]] = []  # the constructor that `_record` extends; of the last run afterwards
_is_extended = False


def _record(self: RemovableHandle, *args: Any, **kwargs: Any) -> None:
    _extended[0](self, *args, **kwargs)
    if _watching and not _is_internal(sys._getframe(1)):
        for hooks in list(_watching):
            hooks.record(self)


def _extend_handles() -> None:
    """Extend the constructor of the handles."""
    from torch.utils.hooks import RemovableHandle

    global _is_extended
    if not _is_extended:
        _extended[:] = [RemovableHandle.__init__]
        RemovableHandle.__init__, _is_extended = _record, True  # type: ignore[method-assign]


def _restore_handles() -> None:
    """Restore the constructor of the handles, unless another library has extended it in the meantime."""
    from torch.utils.hooks import RemovableHandle

    global _is_extended
    if RemovableHandle.__init__ is _record:
        RemovableHandle.__init__, _is_extended = _extended[0], False  # type: ignore[method-assign]


def _is_internal(frame: FrameType | None) -> bool:
    """Return whether PyTorch or hookbus create a handle for themselves, as pruning, sharding and counted steps do."""
    while frame is not None and frame.f_globals.get("__name__") in REGISTERING:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(("torch.", "hookbus."))


def _do_nothing(*_: Any, **__: Any) -> None: ...


def _iter_methods(run: Any, plugin: object) -> Iterator[tuple[Any, Any]]:
    """Yield the dict and the key of each PyTorch hook on model, loss and optimizers that is a method of a plugin."""
    modules = [part for module in (run.model, run.loss) if module is not None for part in module.modules()]
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    # PyTorch has no public API to list the hooks of an object (as of 2.13).
    attributes = chain.from_iterable(vars(owner).items() for owner in (*modules, *run.optimizers.values()))
    dicts = [value for name, value in attributes if name.endswith("_hooks")]
    dicts += [getattr(p, name) for p in parameters for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    for hooks in dicts:
        if isinstance(hooks, Mapping):
            yield from ((hooks, key) for key, hook in list(hooks.items()) if _is_method(hook, plugin))


def _is_method(hook: object, plugin: object) -> bool:
    """Return whether a function is a method of a plugin, or a `partial` of one."""
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(hook, "__self__", None) is plugin
