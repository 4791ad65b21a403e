"""The event bus of training: points of `Lifecycle`, actions, and runs of custom loops.

The training loop calls the compiled functions of the points through `bus.calls`; custom loops call `bus.emit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._events.actions import actionspec
from hookbus._events.checks import as_hook_list
from hookbus._events.table import Order, PointEffects
from hookbus._run.belongings import TorchHooks
from hookbus._run.nesting import wrap_emitter
from hookbus._run.point_counters import PointCounters
from hookbus._run.point_effects import default_arguments, epilogue, namespace, prologue
from hookbus._run.preconditions import admit
from hookbus._run.run import Run
from hookbus._run.run_bus import RunBus
from hookbus._utils.arguments import check_keywords
from hookbus._utils.known_keys import find_framework_alias
from hookbus.lifecycle import POINTS

if TYPE_CHECKING:
    from hookbus._run.loop_session import open_run, run_context
    from hookbus._utils.arguments import with_parameters_of
    from hookbus.bridge import Bridge

__all__ = ["NON_ABORTING", "ActionSpecs", "HookBus"]

NON_ABORTING = frozenset({"on_exception", "after_run", "cleanup"})
"""Points that call every listener even if one of them fails. The exceptions are raised together afterwards."""


class ActionSpecs:
    """Actions of training, one method each."""

    @actionspec
    def train_step(self, run, batch):  # type: ignore[no-untyped-def]
        """Train on one micro-batch: forward, backward, and the optimizer step if it is due. Return the outputs."""

    @actionspec
    def val_step(self, run, batch):  # type: ignore[no-untyped-def]
        """Evaluate one validation batch. Return the outputs, including the loss if there is one."""

    @actionspec
    def test_step(self, run, batch):  # type: ignore[no-untyped-def]
        """Evaluate one test batch. Return the outputs, including the loss if there is one."""

    @actionspec
    def predict_step(self, run, batch):  # type: ignore[no-untyped-def]
        """Predict one batch. Return the outputs, which contain no loss."""


class HookBus(RunBus):
    """Event bus for training.

    Args:
        hooks: Hooks to register, in this order. No other hooks are registered.
        order: Order of the listeners at each point. `"nested"` (default) runs `before_*` points by ascending and
            `after_*` points by descending priority, so that hooks nest like context managers. `"ascending"` runs every
            point by ascending priority.

    Attributes:
        calls: Compiled function of every point and action, as used by the training loop.
        table: Event tables from which the functions are compiled.
        current: Active run, or an idle run if none is active.
        torch_hooks: PyTorch hooks that the hooks have registered.
        lock: Lock that guards registration and compilation.
        pm: The pluggy PluginManager. Its register, unregister and set_blocked are equivalent to those of the bus.

    Raises:
        RegistrationError: If a hook is invalid.
        ConfigError: If `order` is invalid.
    """

    @check_keywords("HookBus")
    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        super().__init__(
            order=order,
            points=POINTS,
            actions=ActionSpecs,
            effects=PointEffects(prologue, epilogue, default_arguments, namespace, PointCounters, NON_ABORTING),
            emitter_wrapper=wrap_emitter,
            find_alias=find_framework_alias,
        )
        self.torch_hooks = TorchHooks(self)
        self.current = Run(self)
        for hook in as_hook_list(hooks):
            self.register(hook)

    @classmethod
    def from_file(cls, path: str | Path) -> HookBus:
        """Build a bus with the hooks of a run file.

        Args:
            path: Path of the run file.

        Raises:
            ConfigError: If the file is invalid. The message lists all errors.
        """
        from hookbus._config.load import load_config  # circular: the config module imports this one

        config = load_config(path)
        return cls(config.build_valid_hooks(), order=config.order)

    def admit(self, name: str, plugin: object) -> None:
        """Let a plugin that was registered take part in the active run, if there is one."""
        admit(self.current, name, plugin)

    # -- runs --------------------------------------------------------------------------------

    def attach(self, host: Any, **options: Any) -> Bridge:
        """Connect this bus with another trainer, which then emits the events of its trainings.

        Args:
            host: The trainer, such as a Lightning or Hugging Face Trainer, for which a package is installed.
            options: `checkpoints="host"` (default) or `"hookbus"`, `metric_prefix`, and options of `run` such as
                `work_dir` and `resume`. Bridges may have further ones.

        Returns:
            The bridge. Its `run` is the run in progress, and `detach()` undoes the connection.

        Raises:
            PluginNotFoundError: If no installed package connects this type of trainer.
            ConfigError: If a hook needs what the trainer does not offer, or an argument is invalid.
        """
        from hookbus.bridge.discovery import attach  # circular: the bridge opens runs of a bus

        return attach(self, host, **options)

    if TYPE_CHECKING:
        # Type checkers see the signature, which is defined in one place.
        run = run_context
        open = with_parameters_of(run_context, open_run)
    else:

        def run(self, **options: Any) -> AbstractContextManager[Run]:
            """Return a context manager for a run of a custom loop.

            Example: `with bus.run(model=model, optimizer=optimizer, epochs=5) as run:`. See
            `hookbus._run.loop_session.run_context` for the options.
            """
            from hookbus._run.loop_session import run_context  # needed by custom loops only

            return check_keywords("bus.run")(run_context)(self, **options)

        def open(self, **options: Any) -> Run:
            """Begin a run that `run.close()` ends, with the options of `run`. See `open_run`."""
            from hookbus._run.loop_session import open_run, run_context  # needed by custom loops only

            return check_keywords("bus.open", run_context)(open_run)(self, **options)
