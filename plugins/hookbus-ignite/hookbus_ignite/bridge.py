"""Runs whose loop is an engine of Ignite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite.engine import DeterministicEngine, Engine, Events
from ignite.handlers import Checkpoint

from hookbus import Hook
from hookbus.bridge import Bridge
from hookbus.errors import CheckpointRefusedError, ConfigError
from hookbus_ignite.capabilities import CAPABILITIES, select_capabilities
from hookbus_ignite.evaluations import Evaluations
from hookbus_ignite.handlers import Handlers
from hookbus_ignite.outputs import to_outputs

if TYPE_CHECKING:
    from hookbus import HookBus

__all__ = ["IgniteBridge"]


class IgniteBridge(Bridge):
    """Runs of a bus whose loop is an `ignite.engine.Engine`.

    Args:
        bus: Bus with the hooks.
        host: The trainer.
        model, optimizer: Objects that the engine trains, or mappings of names to objects.
        evaluators: Evaluators by name. Their runs during the training are validations.
        validate: Function of the trainer that runs the evaluators, for the validations that hooks request.
        save: Handler that saves a checkpoint, such as `ignite.handlers.Checkpoint`, for those that hooks request.
        output_transform: Function that maps `trainer.state.output` to a dict with "loss". Default: the output is a
            dict, or the loss.
        update_emits: Whether the update function of the trainer emits `after_forward` and `after_backward` through
            `emit`, and checks `run.should_skip_iter`.
        options: Options of `Bridge` and of `bus.open`, such as `checkpoints`, `scheduler` and `work_dir`.

    Raises:
        ConfigError: If a hook needs what the engine does not offer, or an argument is invalid.
    """

    capabilities = CAPABILITIES
    metric_prefixes = ("",)

    def __init__(
        self,
        bus: HookBus,
        host: Engine,
        *,
        model: Any = None,
        optimizer: Any = None,
        evaluators: Mapping[str, Engine] | None = None,
        validate: Callable[[Engine], object] | None = None,
        save: Callable[[Engine], object] | None = None,
        output_transform: Callable[[Any], dict[str, Any] | None] = to_outputs,
        update_emits: bool = False,
        **options: Any,
    ) -> None:
        offered = select_capabilities(update_emits=update_emits, validates=validate is not None, saves=save is not None)
        self.capabilities = offered  # type: ignore[misc]
        super().__init__(bus, host, **options)
        _check_arguments(model, evaluators)
        self._objects = {"model": model, "optimizer": optimizer}
        self._validate, self._save, self._output_transform = validate, save, output_transform
        self._handlers, self._evaluations = Handlers(), Evaluations(self, evaluators or {})
        self._engines = [host, *(evaluators or {}).values()]
        self._end_of_epoch: Any = None  # handle of the last handler of EPOCH_COMPLETED
        self._error: BaseException | None = None  # exception that a handler of the user has received
        self._saved: Any = None  # path of the last checkpoint that was reported
        self._in_iteration = self._is_interrupted = self._stops_epoch = self._has_outputs = False

    def attach(self) -> None:
        """Add the event handlers to the engines, and wrap `run` of the trainer."""
        add, trainer = self._handlers.add, self.host
        add(trainer, Events.STARTED, self._on_started, first=True)
        add(trainer, Events.EPOCH_STARTED, self._on_epoch_started, first=True)
        # Not first: earlier handlers may replace the batch.
        add(trainer, Events.ITERATION_STARTED, self._on_iteration_started)
        add(trainer, Events.ITERATION_COMPLETED, self._on_iteration_completed, first=True)
        add(trainer, Events.EPOCH_COMPLETED, self._on_epoch_completed, first=True)
        add(trainer, Events.INTERRUPT, self._on_interrupt)
        self._evaluations.attach(self._handlers)
        for engine in self._engines:
            if not engine.has_registered_events(Checkpoint.SAVED_CHECKPOINT):
                engine.register_events(Checkpoint.SAVED_CHECKPOINT)
            add(engine, Checkpoint.SAVED_CHECKPOINT, self._on_saved)
        # A handler of EXCEPTION_RAISED would suppress the exception.
        self.replace(trainer, "run", self._wrap_run)
        self.replace(trainer, "_handle_exception", self._wrap_handle_exception)

    def detach(self) -> None:
        """Remove the event handlers, and undo `replace`."""
        super().detach()
        self._handlers.remove()

    def emit(self, point: str, **arguments: Any) -> None:
        """Emit a point within the update function. No effect without a run.

        Args:
            point: "after_forward" or "after_backward".
            arguments: Arguments of the point, such as `batch` and `outputs` with "loss".
        """
        emit: Callable[..., None] = self.bus.emit  # without its overloads, one per point
        if self.is_open:
            emit(point, **arguments)

    # -- state in the checkpoints of Ignite ------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of hooks and loop, for `Checkpoint(to_save={"hookbus": bridge, ...})`."""
        # The tensors of the model in the same checkpoint are references: they are to contain the raw weights.
        self._evaluations.finish()
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`, for `Checkpoint.load_objects`."""
        self.set_state(state)

    # -- what hooks request ----------------------------------------------------------------------

    def stop(self, reasons: Sequence[str]) -> None:
        """Terminate the training after the current iteration."""
        self.host.terminate()

    def stop_epoch(self) -> None:
        """Terminate the epoch after the current iteration, or after its first one if it has just begun."""
        if self.host.last_event_name in (Events.STARTED, Events.EPOCH_STARTED):
            self._stops_epoch = True
        else:
            self.host.terminate_epoch()

    def save(self, reasons: Sequence[str]) -> None:
        """Call the handler that saves."""
        assert self._save is not None
        self._save(self.host)

    def validate(self) -> None:
        """Call the function that runs the evaluators."""
        assert self._validate is not None
        self._validate(self.host)
        self._evaluations.end()

    # -- events of the trainer -------------------------------------------------------------------

    def _on_started(self, engine: Engine) -> None:
        state, self._has_outputs = engine.state, False
        self.open(
            **self._objects,
            epochs=state.max_epochs,
            iterations=getattr(state, "max_iters", None),  # older versions have none
            epoch_length=state.epoch_length,
            train_loader=state.dataloader,
            fresh=state.iteration == 0,
        )
        self._locate(engine)
        # Added last at each start: the validation of an epoch, in handlers of the user, belongs to the epoch.
        if self._end_of_epoch is not None:
            self._end_of_epoch.remove()
        self._end_of_epoch = self._handlers.add(engine, Events.EPOCH_COMPLETED, self._on_end_of_epoch)

    def _locate(self, engine: Engine) -> None:
        """Continue the engine where the checkpoint hook resumes the run; warn if they are at different iterations."""
        run, state = self.active_run, engine.state
        if run.iters_done == state.iteration:
            return
        if self.checkpoints == "host":
            run.logger.warning(
                "The trainer starts at iteration %s and the hooks at iteration %s, because their state was not loaded. "
                'Add "hookbus": bridge to `to_save` and `to_load` of the checkpoint handler.',
                state.iteration,
                run.iters_done,
            )
            return
        state.iteration, state.epoch = run.iters_done, run.epochs_done
        is_within = state.epoch_length is not None and state.iteration % state.epoch_length
        if is_within and not isinstance(engine, DeterministicEngine):
            run.logger.warning(
                "The run resumes within epoch %s, whose data Ignite reads from the start. Use a DeterministicEngine, "
                "or resume from a checkpoint of an epoch.",
                run.epochs_done,
            )

    def _on_epoch_started(self, engine: Engine) -> None:
        self._evaluations.end()
        self.bus.emit("before_epoch")
        self.bus.emit("before_train_epoch")

    def _on_iteration_started(self, engine: Engine) -> None:
        self._evaluations.end()
        self._in_iteration, self._error, state = True, None, engine.state
        self.bus.emit("before_train_iter", batch=state.batch)
        state.batch = self.active_run.resolve_batch(state.batch)

    def _on_iteration_completed(self, engine: Engine) -> None:
        outputs = self._output_transform(engine.state.output)
        if not self._has_outputs:
            self._check_outputs(outputs)
        self._in_iteration = False
        self.bus.emit("after_train_iter", batch=engine.state.batch, outputs=outputs)
        if self._stops_epoch:
            self._stops_epoch = False
            engine.terminate_epoch()

    def _on_epoch_completed(self, engine: Engine) -> None:
        if self._in_iteration:  # a handler of EXCEPTION_RAISED has suppressed the exception of the iteration
            self._in_iteration = False
            self.bus.emit("after_train_iter")
        self.bus.emit("after_train_epoch")

    def _on_end_of_epoch(self, engine: Engine) -> None:
        self._evaluations.end()
        self.bus.emit("after_epoch")

    def _on_interrupt(self, engine: Engine) -> None:
        self._is_interrupted = True

    def _on_saved(self, engine: Engine) -> None:
        path = getattr(self._save, "last_checkpoint", None)
        if path is not None and path != self._saved:
            self._saved = path
            self.report_save(Path(path))

    def _report_termination(self) -> None:
        """Stop the run if a handler of the user has terminated the trainer before its end."""
        trainer = self.host
        is_early = trainer.should_terminate and not trainer._is_done(trainer.state)
        if self.is_open and is_early and self._error is None:
            self.report_stop()

    def _check_outputs(self, outputs: Mapping[str, Any] | None) -> None:
        """Raise if a hook needs the loss or the outputs of the model, and the update function does not return them."""
        self._has_outputs = True
        names = set(outputs or ())
        missing = {"'loss'": "loss"} if "loss" not in names else {}
        # Evaluators pass the outputs of the validation to hooks.
        if not names - {"loss"} and len(self._engines) == 1:
            missing["the outputs of the model"] = "outputs"
        hooks = {name: hook for name, hook in self.bus.hooks.items() if isinstance(hook, Hook)}
        problems = [
            f"output_transform: should return a dict with {text}, which hook {name!r} requires, got "
            f"{', '.join(map(repr, sorted(names))) or None}. Return it from the update function, and pass "
            "output_transform= to bus.attach."
            for text, need in missing.items()
            for name, hook in hooks.items()
            if getattr(hook.needs, need)
        ]
        if problems:
            raise ConfigError(problems)

    # -- methods of the trainer ------------------------------------------------------------------

    def _wrap_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self._is_interrupted = self._in_iteration = False
            self._error = None
            try:
                state = original(*arguments, **options)
            except BaseException as error:
                self.close(error)
                raise
            if not self._is_interrupted:  # otherwise the next call of `run` continues the training
                self._evaluations.end()
                self._report_termination()
                self.close(self._error)
            return state

        return run

    def _wrap_handle_exception(self, original: Callable[[BaseException], None]) -> Callable[[BaseException], None]:
        def handle(error: BaseException) -> None:
            with self.omit_refused_save():
                if isinstance(error, CheckpointRefusedError):
                    raise error  # not to the caller: it has ended the training
                self._error = error
                original(error)

        return handle


def _check_arguments(model: Any, evaluators: Any) -> None:
    if model is None:
        raise ConfigError(["model: should be the model that the engine trains, got None. Pass model= to bus.attach."])
    if evaluators is not None and not isinstance(evaluators, Mapping):
        raise ConfigError(
            [
                f"evaluators: should map names to engines, got {type(evaluators).__name__}. Pass "
                'evaluators={"val": evaluator}.'
            ]
        )
