"""Event bus of a run: the points with their argument types, and the run that the hooks are attached to."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from hookbus._events.bus import EventBus
from hookbus._events.registry import ensure_single_bus
from hookbus._run.belongings import TorchHooks
from hookbus._utils.detached_copies import deepcopy_as_none
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._run.emit_overloads import Emit
    from hookbus._run.run import Run


class RunBus(EventBus):
    """Base class of `HookBus`, without the construction of runs.

    Attributes:
        current: Active run, or an idle run if none is active.
        torch_hooks: PyTorch hooks that the hooks have registered.
    """

    current: Run
    torch_hooks: TorchHooks
    # Methods of hooks that a point or an action of the same name would call.
    reserved_names: ClassVar[Collection[str]] = frozenset(name for name in vars(Hook) if not name.startswith("_"))
    _belongs_to_run: ClassVar[bool] = True  # see `hookbus._utils.detached_copies`
    __deepcopy__ = deepcopy_as_none

    # The generated overloads type the arguments of each point; a method cannot be declared by a Protocol.
    if TYPE_CHECKING:
        emit: Emit  # type: ignore[assignment]

    def has_action(self, name: str) -> bool:
        """Return whether a loop has registered the step of an action.

        Args:
            name: `"train_step"`, `"val_step"`, `"test_step"` or `"predict_step"`.
        """
        return name in self.table.steps

    def attach_run(self, run: Run) -> None:
        """Attach a run to the bus and to its hooks.

        Raises:
            HookError: If a hook is used by an active run of another bus.
            OrderError: If the before=/after= constraints form a cycle.
        """
        # Before anything is attached, so that an error leaves the previous run attached.
        self.check_attachable(run)
        self.current = run
        self.torch_hooks.watch()
        for hook in self.hooks.values():
            if isinstance(hook, Hook):
                hook._run = run
        self.invalidate()

    def release(self, name: str, plugin: object) -> None:
        """Remove what a hook has registered; called when it was unregistered or disabled."""
        super().release(name, plugin)
        for remove in self.torch_hooks.release(name, plugin, self.current):
            self.pm.call_after_event(remove)

    def check_attachable(self, run: Run) -> None:
        """Check that a run can be attached, without attaching it.

        Raises:
            HookError: If a hook is used by an active run of another bus.
            OrderError: If the before=/after= constraints form a cycle.
        """
        for hook in self.hooks.values():
            if isinstance(hook, Hook):
                ensure_single_bus(hook, self)
        self.table.check_order(run)
