"""Trial steps that leave no trace in the run: `with run.sandbox() as trial:`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from hookbus._events.call_stack import current_points
from hookbus.errors import LoopError
from hookbus.metrics.store import MetricStore

WITHIN_STEP = {"after_forward", "after_backward", "before_optimizer_step", "after_optimizer_step"}
"""Points between the forward pass and the end of the optimizer step, which needs the weights of the forward pass."""
WITHIN_SAVE = {"before_save_checkpoint", "after_save_checkpoint"}


def call_model(run: Any, batch: Any) -> Any:
    """Call the model of a run, without its wrappers, with a batch.

    Args:
        run: The run.
        batch: The items of a mapping are keyword arguments. Of a tuple or list, the first element is passed.
    """
    from hookbus.distributed.unwrap import strip_wrappers

    model = strip_wrappers(run.model)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch)


class Trial:
    """Trial steps inside `run.sandbox()`.

    Args:
        run: The run.
        preserve: Function that is called with each loader before it is read.
        local: Whether the steps do not communicate.

    Attributes:
        local: Whether the steps do not communicate, so that they may fail on one rank. Hooks do not handle their
            errors.
    """

    def __init__(self, run: Any, preserve: Callable[[Iterable[Any]], None], *, local: bool) -> None:
        self._run, self._preserve, self.local = run, preserve, local
        self._discarded: Counter[str] = Counter()

    def train_step(self, batch: Any) -> Any:
        """Execute the action `train_step`, as hooks replace or wrap it, without events.

        Args:
            batch: A batch. A Trainer moves it to its device.

        Returns:
            Return value of the step, such as the outputs with "loss".

        Raises:
            LoopError: If the loop has no such action.
        """
        run = self._run
        if "train_step" not in run.bus.table.steps:
            raise LoopError(
                "trial.train_step: the loop has no action train_step. Pass its step to bus.action('train_step', step), "
                "or compute the forward and the backward pass in the hook."
            )
        if run.trainer is not None:
            from hookbus.data.batches import move_to_device

            batch = move_to_device(batch, run.device)
        run.should_skip_iter = False
        return run.bus.calls.get("train_step")(run, batch)

    def eval_step(self, batch: Any) -> Any:
        """Execute the action `val_step`, which computes the outputs of a batch, without events and gradients.

        The modes of the layers remain as they are. In a loop without such an action the model is called: with the items
        of a mapping as keyword arguments, with the first element of a tuple or list, or with the batch itself. Another
        trainer may compute the outputs in its own way.

        Args:
            batch: A batch. It is moved to the device of the model.

        Returns:
            Return value of the step or of the model.
        """
        import torch  # importing this module must not import torch

        from hookbus.data.batches import move_to_device

        run = self._run
        parameter = next(iter(run.model.parameters()), None)
        batch = batch if parameter is None else move_to_device(batch, parameter.device)
        with torch.no_grad():
            if "val_step" in run.bus.table.steps:
                return run.bus.calls.get("val_step")(run, batch)
            return call_model(run, batch) if run.host is None else run.host.compute_outputs(batch)

    def batches(self, loader: Iterable[Any] | None = None, *, batch_size: int | None = None) -> Iterator[Any]:
        """Yield the batches of a loader from the start of the epoch, without a change of the position in the data.

        Args:
            loader: Training data. Default: the training loader of the run.
            batch_size: Number of samples per batch. Default: that of the loader.

        Raises:
            LoopError: If there is no loader, or its batches can be read only once.
            ConfigError: If the batch size of the loader cannot be changed.
        """
        loader = self._run.train_loader if loader is None else loader
        if loader is None:
            raise LoopError("trial.batches: the run has no training loader. Pass the loader.")
        self._preserve(loader)
        if batch_size is not None:
            from hookbus.data.resizing import resize_loader

            loader = resize_loader(loader, batch_size)
        batches: Iterator[Any] = self._run.training_data.trial_batches(loader)
        return batches

    def discard(self, name: str) -> None:
        """Count a request or a record, which has no effect in a trial."""
        self._discarded[name] += 1

    def replace_event(self, point: str) -> Callable[..., None] | None:
        """Return the function that is called instead of the listeners of a point; None to call nothing."""
        return (lambda **_: self.discard(point)) if point.startswith("log_") else None

    def report(self) -> None:
        """Log a warning with everything that had no effect."""
        if self._discarded:
            counts = ", ".join(f"{count} x {name}" for name, count in sorted(self._discarded.items()))
            self._run.logger.warning(
                "run.sandbox: discarded because trial steps are not part of the training: %s. Make requests and log "
                "records after the `with` block.",
                counts,
            )


@contextmanager
def sandbox(run: Any, *, local: bool) -> Iterator[Trial]:
    """Context manager for trial steps, see `Run.sandbox`.

    Raises:
        LoopError: If trial steps at this position would change the training, or cannot be local.
    """
    if place := _find_refused_place(run):
        raise LoopError(
            f"run.sandbox: called {place}. Call it from before_train on, between two iterations or at "
            "before_train_iter."
        )
    local_steps = _get_local_steps(run) if local else nullcontext()
    run.weights.wait_for_threads()
    with ExitStack() as stack:
        # The RNG states are restored last: everything inside may draw from them.
        trial = Trial(run, stack.enter_context(_preserved_loaders(run)), local=local)
        stack.callback(trial.report)
        stack.enter_context(run.boundary_state.unchanged_versions())
        stack.enter_context(run.bus.muted(trial.replace_event))
        stack.enter_context(_preserved_run(run, trial))
        stack.enter_context(_preserved_objects(run))
        stack.enter_context(local_steps)
        yield trial


def _get_local_steps(run: Any) -> AbstractContextManager[Any]:
    """Return a context manager in which the steps of the Trainer do not communicate.

    Raises:
        LoopError: If the steps of the loop may communicate.
    """
    if run.ranks.world_size == 1:
        return nullcontext()
    if run.trainer is None:
        raise LoopError(
            f"run.sandbox(local=True): the step of the loop may communicate with the {run.ranks.world_size} ranks. Use "
            "the Trainer, or a single process."
        )
    steps: AbstractContextManager[Any] = run.trainer.steps.local()
    return steps


def _find_refused_place(run: Any) -> str:
    """Return the position of the run if it is one where no trial step is possible, "" otherwise."""
    points = current_points(run)
    if run.mode != "train":
        return f"in a run of mode {run.mode!r}"
    if run.resumed is None or run.outcome != "running" or run.exception is not None:
        return "before the training has begun" if run.resumed is None else "after the training"
    if run.validating:
        return "within a validation"
    if within := sorted(points & (WITHIN_STEP | WITHIN_SAVE)):
        return f"within {within[0]}"
    return "within an iteration" if run.clock.iter_open and "before_train_iter" not in points else ""


# -- what is preserved -----------------------------------------------------------------------------


@contextmanager
def _preserved_run(run: Any, trial: Trial) -> Iterator[None]:
    """Context manager that restores the fields of a run which an iteration changes."""
    outer, metrics, accumulated, skip = run.trial, run.metrics, run.accumulated, run.should_skip_iter
    timed, paused = run.clock.is_timing, run.optimizer_events.is_paused
    run.clock.stop()
    run.trial, run.metrics, run.accumulated = trial, MetricStore(), 0
    run.optimizer_events.is_paused = True
    try:
        yield
    finally:
        run.trial, run.metrics, run.accumulated, run.should_skip_iter = outer, metrics, accumulated, skip
        run.optimizer_events.is_paused = paused
        if timed:
            run.clock.start()


@contextmanager
def _preserved_objects(run: Any) -> Iterator[None]:
    """Context manager that restores model, loss function, optimizers, schedulers, scaler and state of the loop."""
    # Importing this module must not import torch.
    import torch

    from hookbus._training.snapshot import capture_training
    from hookbus.checkpoint.hook_states import collect_loop_state, load_loop_state

    modules = [module for module in (run.model, run.loss) if module is not None]
    state = copy.deepcopy(collect_loop_state(run.state)).get("state", {})
    restores = capture_training(modules, run.optimizers.values(), run.schedulers.values(), run.scaler)
    try:
        yield
    finally:
        with torch.no_grad():
            for restore in restores:
                restore()
        load_loop_state(run.state, state, run.logger)


@contextmanager
def _preserved_loaders(run: Any) -> Iterator[Callable[[Iterable[Any]], None]]:
    """Context manager that restores the RNG states, and the generators of the training loader.

    Yields:
        Function that also preserves the generators of another loader.
    """
    from hookbus.data.rng import get_sampler_state, set_sampler_state

    states = {id(run.train_loader): (run.train_loader, get_sampler_state(run.train_loader))}

    def preserve(loader: Iterable[Any]) -> None:
        if id(loader) not in states:
            states[id(loader)] = loader, get_sampler_state(loader)

    try:
        with run.training_data.preserved_position():
            yield preserve
    finally:
        # The first state contains the RNG states at the start.
        for loader, state in reversed(states.values()):
            set_sampler_state(loader, state)
