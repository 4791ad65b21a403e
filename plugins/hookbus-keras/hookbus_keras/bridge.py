"""Bridge of a Keras model: `fit` drives a run, and `evaluate` outside of it is a test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from hookbus.bridge import Bridge
from hookbus.distributed import world_size
from hookbus.errors import ConfigError
from hookbus_keras.callback import RunCallback
from hookbus_keras.capabilities import CAPABILITIES
from hookbus_keras.files import SUFFIXES, can_contain_state, read_state, write_state
from hookbus_keras.optimizer import OptimizerView
from hookbus_keras.saving import SavingCallbacks
from hookbus_keras.steps import Method, Steps

BACKEND = "torch"
CONNECTED = "hookbus_bridge"
"""Attribute of the wrapper of `fit`."""


class KerasBridge(Bridge):
    """Run of a bus whose loop is `fit` of a Keras model with the torch backend.

    Methods of the model are wrapped until `detach`: `fit`, `evaluate`, `train_step`, `test_step`, `compute_loss`,
    `save`, `save_weights` and `load_weights`. Each call of `fit` is a run. One with an `initial_epoch` continues the
    state of the file that `load_weights` has loaded, or the previous run.

    Args:
        bus, checkpoints, metric_prefix, options: As in `Bridge`.
        host: The model.

    Attributes:
        initial_epoch: First epoch, from 0, of the current call of `fit`, as passed by its caller.

    Raises:
        ConfigError: If the backend of Keras is not torch, a hook needs what Keras does not offer, or an argument is
            invalid.
    """

    capabilities = CAPABILITIES
    metric_prefixes = ("",)

    def attach(self) -> None:
        """Wrap the methods of the model.

        Raises:
            ConfigError: If the backend is not torch, the model is connected with a bus already, or there are several
                ranks.
        """
        if hasattr(vars(self.host).get("fit"), CONNECTED):
            raise ConfigError(
                ["bus.attach: the model is connected with a bus already. Call detach() of its bridge first."]
            )
        if (backend := keras.backend.backend()) != BACKEND:
            raise ConfigError(
                [
                    f"keras: the backend should be {BACKEND!r}, got {backend!r}. Set the environment variable "
                    f"KERAS_BACKEND={BACKEND} before Keras is imported."
                ]
            )
        check_ranks(world_size())
        self.emit: Any = self.bus.emit  # whose overloads require literal names
        self._steps = Steps(self)
        self.initial_epoch = self._epochs_before = 0
        self._is_in_fit = self._is_in_epoch = False
        wrappers: dict[str, Callable[[Method], Method]] = {
            "fit": self._wrap_fit,
            "evaluate": self._wrap_evaluate,
            "save": self._wrap_save,
            "save_weights": self._wrap_save,
            "load_weights": self._wrap_load_weights,
            **self._steps.wrappers,
        }
        for name, wrap in wrappers.items():
            self.replace(self.host, name, wrap)

    @property
    def is_training(self) -> bool:
        """Whether an epoch of `fit` is in progress."""
        return self._is_in_epoch

    # -- the loop ----------------------------------------------------------------------------------

    def _wrap_fit(self, original: Method) -> Method:
        @functools.wraps(original)
        def fit(*args: Any, **kwargs: Any) -> Any:
            arguments = inspect.signature(original).bind(*args, **kwargs)
            self.initial_epoch = arguments.arguments.get("initial_epoch", 0)
            check_compiled(self.host)
            add_callback(arguments, RunCallback(self))
            self._saving = SavingCallbacks(self, arguments.arguments["callbacks"])
            with self._saving.connect():
                return self._call(original, arguments)

        setattr(fit, CONNECTED, self)
        return fit

    def _wrap_evaluate(self, original: Method) -> Method:
        @functools.wraps(original)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            if self.is_open and self.active_run.aborted:
                return {}  # the weights are corrupted
            if self._is_in_fit:  # the validation of `fit`, whose callbacks contain the one of the bridge
                return original(*args, **kwargs)
            arguments = inspect.signature(original).bind(*args, **kwargs)
            check_compiled(self.host)
            add_callback(arguments, RunCallback(self))
            self.run = self.bus.open(host=self, mode="test", model=self.host, work_dir=self._options.get("work_dir"))
            result = self._call(original, arguments)
            self.close()
            return result

        return evaluate

    def _call(self, function: Method, arguments: inspect.BoundArguments) -> Any:
        """Call `fit` or `evaluate`, and end the run if it fails."""
        self._is_in_fit = True
        try:
            return function(*arguments.args, **arguments.kwargs)
        except BaseException as error:
            self.close(error)
            raise
        finally:
            self._is_in_fit = self._is_in_epoch = False
            if self.checkpoints == "hookbus":
                self.host._initial_epoch = None  # see `RunCallback.on_train_begin`

    def begin_training(self, epoch: int, params: Mapping[str, Any]) -> None:
        """Begin the run of a call of `fit`.

        Args:
            epoch: First epoch, from 0.
            params: Parameters that Keras passes to callbacks.
        """
        model, is_resumed = self.host, bool(self._pending_state) or self._options.get("resume", "never") != "never"
        continues = not is_resumed and epoch > 0 and self.bus.current.epochs_done == epoch
        self._build_optimizer()
        run = self.open(
            model=model,
            optimizer=OptimizerView(model.optimizer, model.trainable_variables),
            epochs=params["epochs"] - (0 if continues or is_resumed else epoch),
            epoch_length=params["steps"],
            counts_steps=True,
            fresh=not continues,
        )
        if epoch and not run.epochs_done:
            run.logger.warning(
                "fit: begins at epoch %s without a state of hookbus: the hooks start from their initial state.", epoch
            )
        # The hooks count from 0 if Keras begins at a later epoch without their state.
        self._epochs_before = 0 if run.epochs_done else epoch
        self._steps.begin_training(model.optimizer)

    def _build_optimizer(self) -> None:
        """Create the variables of the optimizer, which Keras creates in the first step."""
        if not self.host.optimizer.built:
            self.host.optimizer.build(self.host.trainable_variables)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigError: If the run does not continue at this epoch.
        """
        check_position(self.active_run, epoch - self._epochs_before)
        self._is_in_epoch = True
        self.bus.emit("before_train_epoch")

    def end_epoch_iterations(self) -> None:
        """Emit `after_train_epoch`, unless it has been emitted in this epoch."""
        if self._is_in_epoch:
            run = self.active_run
            if self.host.stop_training and run.epoch_iter + 1 != run.epoch_length:
                self.report_stop()  # a callback has stopped `fit` within the epoch
            self._is_in_epoch = False
            self.bus.emit("after_train_epoch")

    def end_training(self) -> None:
        """End the run."""
        if self.is_open and self.host.stop_training and self.active_run.epochs_done != self.active_run.max_epochs:
            self.report_stop()  # a callback has stopped `fit` at the end of an epoch
        self.close()

    @property
    def evaluated_part(self) -> str:
        """Name of the evaluations of the run in the names of points."""
        return "val" if self.active_run.mode == "train" else "test"

    def begin_evaluation(self) -> None:
        """Begin a validation of `fit`, or a test."""
        self.active_run.begin_validation()
        self.emit(f"before_{self.evaluated_part}_epoch")

    def end_evaluation(self, metrics: Mapping[str, Any]) -> None:
        """End it.

        Args:
            metrics: Results of Keras.
        """
        self.emit(f"after_{self.evaluated_part}_epoch", metrics=self.select_results(metrics))
        self.active_run.end_validation()

    def stop(self, reasons: Sequence[str]) -> None:
        """End the training after the current batch."""
        self.host.stop_training = True
        if self.active_run.aborted:
            self._saving.discard_weights()

    # -- files -------------------------------------------------------------------------------------

    def _wrap_save(self, original: Method) -> Method:
        @functools.wraps(original)
        def save(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_open or self.checkpoints != "host":
                return original(filepath, *args, **kwargs)
            with self.omit_refused_save():
                state = self.get_state()
                result = original(filepath, *args, **kwargs)
                self._write_state(Path(filepath), state)
                self.report_save(Path(filepath))
                return result

        return save

    def _write_state(self, path: Path, state: Mapping[str, Any]) -> None:
        if can_contain_state(path):
            write_state(path, state)
            return
        self.active_run.logger.warning(
            "%s: saved without the state of the hooks, so that a training cannot continue from it. Save a local file "
            "with the suffix %s.",
            path,
            " or ".join(SUFFIXES),
        )

    def _wrap_load_weights(self, original: Method) -> Method:
        @functools.wraps(original)
        def load_weights(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            path = Path(filepath)
            state = read_state(path) if self.checkpoints == "host" and can_contain_state(path) else {}
            if state:
                self._build_optimizer()  # Keras ignores the state of an optimizer that is not built
            result = original(filepath, *args, **kwargs)
            if state or self.is_open:
                self.set_state(state)
            return result

        return load_weights


def check_ranks(count: int) -> None:
    """Check that there is one rank.

    Raises:
        ConfigError: If there are several.
    """
    if count > 1:
        raise ConfigError(
            [
                f"ranks: `fit` does not synchronize gradients with the torch backend, so each rank would train its own "
                f"model, got {count} ranks. Train in one process, or with a Trainer."
            ]
        )


def check_compiled(model: Any) -> None:
    """Check that the step of a model is executed by Python in each iteration.

    Raises:
        ConfigError: If it is compiled.
    """
    if getattr(model, "jit_compile", False):
        raise ConfigError(
            ["jit_compile: a compiled step emits no events, got True. Pass jit_compile=False to model.compile."]
        )


def add_callback(arguments: inspect.BoundArguments, callback: Any) -> None:
    """Put a callback in front of those among the arguments of `fit` or `evaluate`.

    Raises:
        ConfigError: If they are in a `CallbackList`, which does not accept another one.
    """
    own = arguments.arguments.get("callbacks") or []
    if isinstance(own, keras.callbacks.CallbackList):
        raise ConfigError(
            ["callbacks: expected a list of callbacks, got a CallbackList. Pass its callbacks as a list."]
        )
    arguments.arguments["callbacks"] = [callback, *keras.tree.flatten(own)]


def check_position(run: Any, epoch: int) -> None:
    """Check that a run continues at an epoch.

    Args:
        run: Run in progress.
        epoch: Number of complete epochs that Keras assumes.

    Raises:
        ConfigError: If it does not.
    """
    done = run.epochs_done
    if run.epoch_open:
        problem = (
            f"the state was saved within epoch {done + 1}, after {run.iters_done} iterations, but Keras begins each "
            "epoch at its first batch. Load a state that was saved at the end of an epoch."
        )
    elif done != epoch:
        problem = (
            f"begins at epoch {epoch}, but the state that was loaded has {done} complete epochs. Pass "
            f"initial_epoch={done}, or load the weights before bus.attach to train from epoch 0."
        )
    else:
        return
    raise ConfigError([f"fit: {problem}"])
