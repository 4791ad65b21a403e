"""Runs of training loops that use Accelerate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler

from hookbus.bridge import LoopBridge
from hookbus.errors import ConfigError, RequestError
from hookbus_accelerate.capabilities import CAPABILITIES
from hookbus_accelerate.skipping import SkippedIterations

if TYPE_CHECKING:
    from hookbus import Run

__all__ = ["AccelerateBridge"]

UNSUPPORTED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA")
"""Distributed types whose models, gradients or checkpoints are not those of torch."""


class AccelerateBridge(LoopBridge):
    """Runs of a loop with an `accelerate.Accelerator`, which is the loop of the user.

    Args:
        bus, host, checkpoints, metric_prefix, options: See `hookbus.bridge.Bridge`.
    """

    capabilities = CAPABILITIES
    _state: dict[str, Any] | None = None  # state of the checkpoint that is being saved

    def attach(self) -> None:
        """Wrap methods of the accelerator, and register the bridge for its checkpoints.

        Raises:
            ConfigError: If the accelerator distributes the training in a way that is not supported.
        """
        name = self.host.distributed_type.value
        if name in UNSUPPORTED:
            raise ConfigError(
                [
                    f"accelerator: should train without {', '.join(UNSUPPORTED)}, got distributed_type {name}. Use a "
                    "single process or DistributedDataParallel."
                ]
            )
        self._skipped = SkippedIterations(self.host)
        self.replace(self.host, "backward", self._wrap_backward)
        self.replace(self.host, "save_state", self._wrap_save_state)
        if self.checkpoints == "host":
            self.host.register_for_checkpointing(self)
            self.replace(self.host, "load_state", self._wrap_load_state)
            self._replaced.callback(self.host._custom_objects.remove, self)

    @contextmanager
    def train(
        self,
        *,
        optimizer: Any = None,
        scheduler: Any = None,
        validate: Callable[..., Mapping[str, Any] | None] | None = None,
        state: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Iterator[Run]:
        """Execute the loop in the `with` block as a run. Events and arguments are those of `bus.run`.

        Args:
            optimizer, scheduler: Results of `accelerator.prepare`, or mappings of names to them.
            validate: Validation function for the validations that hooks request.
            state: Further state of the loop, which checkpoints contain.
            arguments: Further arguments of `bus.run`, such as `model`, `epochs` and `seed`.

        Yields:
            The run.

        Raises:
            ConfigError: If an argument is invalid, or a hook requires a validation function.
            HookbusError: If a precondition of a hook is not met.
        """
        _check_prepared(optimizer)
        if validate is None:
            self.check_validations()
        options: dict[str, Any] = {
            "device": self.host.device,
            "scaler": self.host.scaler,
            "state": {"accelerate_step": (self._get_step, self._set_step), **(state or {})},
            "optimizer": _unwrap(optimizer),
            "scheduler": _unwrap(scheduler),
            "validate": validate,
            **arguments,
        }
        try:
            with self.bus.run(**self.get_run_arguments(options)) as run:
                self.begin(run)
                yield run
        finally:
            self._skipped.end()

    # -- state in the checkpoints of Accelerate ------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of hooks and loop, which `accelerator.save_state` has collected."""
        return self.get_state() if self._state is None else self._state

    def _get_step(self) -> int:
        """Return the number of micro-batches, by which the accelerator decides whether a step is due."""
        return int(self.host.step)

    def _set_step(self, step: int) -> None:
        self.host.step = step

    # -- what hooks request --------------------------------------------------------------------

    def save(self, reasons: Sequence[str]) -> None:
        """Save a checkpoint of the accelerator: in its project directory, or in the work directory.

        Raises:
            RequestError: If there is neither.
        """
        run = self.active_run
        if self.host.project_configuration.automatic_checkpoint_naming:
            self.host.save_state()
        elif run.work_dir is not None:
            self.host.save_state(run.require("checkpoints_dir") / f"step_{run.steps_done}")
        else:
            raise RequestError(
                f"{', '.join(reasons)}: requested a checkpoint, but the accelerator has no directory for it. Pass "
                "work_dir= to bus.attach, or a ProjectConfiguration with automatic_checkpoint_naming=True to the "
                "Accelerator."
            )

    # -- methods of the accelerator --------------------------------------------------------------

    def _wrap_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        emit, skipped = self.bus.emit, self._skipped

        def backward(loss: Any, **options: Any) -> None:
            if not self.is_open:
                return original(loss, **options)
            run = self.active_run
            if not run.should_skip_iter:
                skipped.end()
                emit("after_forward", loss=loss)
            if run.should_skip_iter:
                return skipped.skip(run.iters_done)
            loss = run.resolve_loss(loss)
            original(loss, **options)
            return emit("after_backward", loss=loss)

        return backward

    def _wrap_save_state(self, original: Callable[..., str]) -> Callable[..., str]:
        def save_state(*arguments: Any, **options: Any) -> str:
            path = ""
            with self.omit_refused_save():
                self._state = self.get_state()  # before Accelerate writes or removes a file
                try:
                    path = original(*arguments, **options)
                finally:
                    self._state = None
                self.report_save(Path(path))
            return path

        return save_state

    def _wrap_load_state(self, original: Callable[..., None]) -> Callable[..., None]:
        def load_state(*arguments: Any, **options: Any) -> None:
            try:
                original(*arguments, **options)
            except RuntimeError as error:
                if "custom checkpoints" in str(error):
                    error.add_note(
                        "hookbus: bus.attach has registered an object with the accelerator. Load a checkpoint that was "
                        "saved without hookbus before bus.attach."
                    )
                raise

        return load_state


def _check_prepared(optimizer: Any) -> None:
    """Raise unless all optimizers were prepared.

    Raises:
        ConfigError: If one was not.
    """
    for part in optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]:
        if part is not None and not isinstance(part, AcceleratedOptimizer):
            raise ConfigError(
                [
                    f"optimizer: should be the result of accelerator.prepare, got {type(part).__name__}. Pass the "
                    "prepared optimizer."
                ]
            )


def _unwrap(value: Any) -> Any:
    """Return an optimizer or scheduler without the wrapper of Accelerate, also in a mapping of names."""
    if isinstance(value, Mapping):
        return {name: _unwrap(part) for name, part in value.items()}
    if isinstance(value, AcceleratedOptimizer):
        return value.optimizer
    return value.scheduler if isinstance(value, AcceleratedScheduler) else value
