"""Bridge to the Trainer of Lightning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import isinf
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from hookbus import Hook
from hookbus.bridge import Bridge
from hookbus.checkpoint import get_run_state
from hookbus.data import get_rng_state, set_rng_state
from hookbus.errors import ConfigError, RequestError
from hookbus_lightning.abort import SavingCallbacks
from hookbus_lightning.callback import BusCallback, get_package, make_callback
from hookbus_lightning.capabilities import TRAINER
from hookbus_lightning.evaluation import Evaluation
from hookbus_lightning.results import by_name, name_loaders
from hookbus_lightning.training import TrainingEvents
from hookbus_lightning.trial import call_training_step, is_overridden


class LightningBridge(Bridge):
    """Runs of a bus in `trainer.fit`, `trainer.validate` and `trainer.test`."""

    capabilities: ClassVar = TRAINER
    metric_prefixes: ClassVar = ("val_", "val/", "test_", "test/")
    training: TrainingEvents
    evaluation: Evaluation
    saving_callbacks: SavingCallbacks
    _callback: Any
    _has_state = _is_requested = False
    _rng_before_data: dict[str, Any] | None = None
    _final_state: Mapping[str, Any] = MappingProxyType({})

    def attach(self) -> None:
        """Register the callback, before the callbacks that save checkpoints.

        Raises:
            ConfigError: If the trainer is running, or a bus is attached already.
        """
        trainer = self.host
        if trainer.state.status == "running":
            raise ConfigError(f"bus.attach: the trainer is running ({trainer.state.fn}). Attach the bus before it.")
        if any(isinstance(callback, BusCallback) for callback in trainer.callbacks):
            raise ConfigError("bus.attach: a bus is attached to this trainer. Register all hooks on that bus.")
        self._callback = make_callback(self)
        trainer.callbacks.insert(_count_tuners(trainer), self._callback)

    def detach(self) -> None:
        """Remove the callback from the trainer."""
        super().detach()
        if self._callback in self.host.callbacks:
            self.host.callbacks.remove(self._callback)

    # -- the run -----------------------------------------------------------------------------

    def prepare(self, module: Any, stage: str) -> None:
        """Prepare a call of the trainer, before it loads a checkpoint."""
        self._pending_state, self._has_state = None, False
        if stage in ("validate", "test"):  # Lightning restores the states of callbacks in `fit` only
            self.replace(module, "on_load_checkpoint", self._wrap_load)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint, now or when the run begins."""
        self._has_state = True
        super().set_state(state)

    def get_state(self) -> dict[str, Any]:
        """Return the state of hooks and loop: of the last boundary of a run that has ended, {} within an iteration."""
        run = self.run
        if run is None or self.checkpoints != "host":
            return {}
        if run.exception is not None or (run.is_running and run.mid_iteration):
            run.logger.warning(
                "A checkpoint of Lightning was saved %s, without the state of the hooks. Resume from one that was "
                "saved between two iterations.",
                f"within iteration {run.current('iter')}" if run.is_running else "after a failure",
            )
            return {}
        return super().get_state() if run.is_running else dict(self._final_state)

    def begin_fit(self) -> None:
        """Begin the run of a training.

        Raises:
            ConfigError: If the training cannot do what the hooks need.
        """
        trainer = self.host
        self._check_fit()
        self.saving_callbacks = SavingCallbacks(self)
        self.replace(trainer, "save_checkpoint", self._wrap_save)
        is_counted = trainer.max_steps != -1 and trainer.accumulate_grad_batches == 1
        self._open_run(
            epochs=None if trainer.max_epochs == -1 else trainer.max_epochs,
            iterations=trainer.max_steps if is_counted and trainer.lightning_module.automatic_optimization else None,
            state={"fit_loop": trainer.fit_loop} if self.checkpoints == "hookbus" else None,
            fresh=trainer.global_step == 0,  # a second `fit` of the same trainer continues
        )
        self.training = TrainingEvents(self)
        self.replace(trainer.strategy, "training_step", self.training.wrap_training_step)
        self._rng_before_data = None
        self.replace(trainer.fit_loop, "setup_data", self._wrap_setup_data)

    def _open_run(self, **arguments: Any) -> None:
        # Not `open`: Lightning loads the data and restores the optimizers between `before_run` and `before_train`.
        self.begin(self.bus.open(**self.get_run_arguments({**self._get_objects(), **arguments})))

    def _wrap_setup_data(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def setup_data() -> None:
            if self._rng_before_data is None and self.active_run.resumed:
                self._rng_before_data = get_rng_state()
            original()

        return setup_data

    def undo_first_iterator(self) -> None:
        """Restore the RNG state that the first iterator of the training loaders has changed, if there is a second one.

        A training that continues after a complete epoch creates an iterator when it loads the data. It creates another
        one at the start of the next epoch if Lightning first completes the epoch of the checkpoint, as after its
        validation or with a limit of steps, and before Lightning 2.6 in any case.
        """
        trainer, rng = self.host, self._rng_before_data
        if rng is None:
            return
        if trainer.fit_loop.epoch_loop.restarting:
            has_second = trainer.is_last_batch
        else:
            has_second = trainer.current_epoch > 0 and not hasattr(trainer.fit_loop, "is_resuming")
        if has_second:
            set_rng_state(rng)

    def begin_training(self) -> None:
        """Emit `before_train`, unless it has been emitted."""
        if self.host.ckpt_path and not self._has_state:
            self.set_state({})
        self.training.begin()

    def report_own_stop(self) -> None:
        """Stop the run if a callback such as EarlyStopping, or a limit such as `max_time`, has stopped Lightning."""
        trainer = self.host
        is_at_limit = trainer.current_epoch == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if trainer.should_stop and not is_at_limit:
            self.report_stop()

    def finish(self) -> None:
        """End the run of a training, and keep its state for `trainer.save_checkpoint` after the training."""
        self.begin_training()  # a training without iterations
        self.report_own_stop()
        self._final_state = get_run_state(self.active_run) if self.checkpoints == "host" else {}
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """End the run, and restore the methods of the trainer."""
        super().detach()
        super().close(error)

    def _check_fit(self) -> None:
        trainer = self.host
        if trainer.ckpt_path and self.checkpoints == "hookbus":
            raise ConfigError(
                f"trainer.fit: ckpt_path should be None with checkpoints='hookbus', got {str(trainer.ckpt_path)!r}. "
                "Pass resume='auto' to bus.attach, or attach the bus with checkpoints='host'."
            )
        hooks = {name: hook for name, hook in self.bus.hooks.items() if isinstance(hook, Hook)}
        if trainer.enable_validation or any(hook.validation_fn is not None for hook in hooks.values()):
            return
        problems = [
            f"hook {name!r}: {'schedules' if hook.schedules_validation else 'requires'} validations, but "
            f"{_describe_missing(trainer)}"
            for name, hook in hooks.items()
            if hook.requires_validation
        ]
        if problems:
            raise ConfigError(problems)

    def _get_objects(self) -> dict[str, Any]:
        """Return the arguments of `bus.open` that are known in every stage."""
        trainer, module = self.host, self.host.lightning_module
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        return {
            "model": module,
            "optimizer": _name("optimizer", trainer.optimizers),
            "scheduler": _name("scheduler", schedulers),
            "scaler": getattr(trainer.precision_plugin, "scaler", None),
            "device": trainer.strategy.root_device,
            "config": dict(module.hparams) or None,
        }

    def _wrap_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
            self.set_state(checkpoint.get("callbacks", {}).get(BusCallback.state_key, {}))
            original(checkpoint)

        return on_load_checkpoint

    # -- events ------------------------------------------------------------------------------

    def set_train_data(self) -> None:
        """Set the training data of the run, which Lightning has loaded."""
        run, loaders, length = self.active_run, self.host.train_dataloader, self.host.num_training_batches
        run.train_loader = by_name(loaders, name_loaders(loaders))
        self.set_epoch_length(None if isinf(length) else int(length))

    def begin_evaluation(self, kind: Literal["val", "test"], loaders: Any) -> None:
        """Begin a validation or test, outside of a training in a run of its own."""
        trainer, names = self.host, name_loaders(loaders)
        is_of_training = self.is_open
        if not is_of_training:
            self._open_run(mode=kind)
        run = self.active_run
        setattr(run, f"{kind}_loader", by_name(loaders, names))
        if is_of_training and not (trainer.sanity_checking or self._is_requested):
            self.training.end_train_epoch()
        run.begin_validation(sanity=trainer.sanity_checking)
        self.evaluation = Evaluation(self.bus, kind, names, lambda: self.select_results(trainer.callback_metrics))

    def end_evaluation(self) -> None:
        """End a validation or test."""
        self.evaluation.end_loader()
        self.active_run.end_validation(self.evaluation.get_whole())
        if self.active_run.mode != "train":
            self.close()

    def _wrap_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> None:
            with self.omit_refused_save():
                original(filepath, *args, **kwargs)
                self.report_save(filepath)

        return save_checkpoint

    def describe_lr_schedule(self) -> str:
        """Return the schedulers that Lightning steps, and how to train without them; "" if there are none."""
        trainer = self.host
        names = ", ".join(type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs)
        if not names or not trainer.lightning_module.automatic_optimization:
            return ""
        return f"the scheduler {names} of Lightning. Return no lr_scheduler from configure_optimizers"

    # -- requests ----------------------------------------------------------------------------

    def compute_outputs(self, batch: Any) -> object:
        """Call the module with a batch, or its `training_step` if it has no `forward`."""
        module = self.host.lightning_module
        if is_overridden(module, "forward") or not module.automatic_optimization:
            return super().compute_outputs(batch)
        return call_training_step(module, batch)

    @property
    def can_validate(self) -> bool:
        """Whether the trainer has validation loaders, and the module a validation step."""
        return bool(self.host.enable_validation)

    def stop(self, reasons: Sequence[str]) -> None:
        """End the training after this iteration, also before `min_epochs` or `min_steps` are reached."""
        trainer = self.host
        trainer.should_stop = True
        if trainer.min_epochs or trainer.min_steps:
            self.replace(trainer.fit_loop, "min_epochs", lambda _: 0)
            self.replace(trainer.fit_loop.epoch_loop, "min_steps", lambda _: None)
        if self.active_run.aborted:
            self.saving_callbacks.discard_weights()

    def save(self, reasons: Sequence[str]) -> None:
        """Save a checkpoint of Lightning."""
        trainer = self.host
        directory = getattr(trainer.checkpoint_callback, "dirpath", None) or f"{trainer.default_root_dir}/checkpoints"
        trainer.save_checkpoint(f"{directory}/hookbus-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")

    def validate(self) -> None:
        """Validate now, as Lightning does after an iteration.

        Raises:
            RequestError: If there is nothing to validate with.
        """
        trainer = self.host
        if trainer.validating or trainer.sanity_checking:
            return  # Lightning is about to validate these weights
        if not trainer.enable_validation:
            raise RequestError(f"A hook has requested a validation, but {_describe_missing(trainer)}")
        logger = trainer._logger_connector
        first_iteration = logger._first_loop_iter  # whether the values of this iteration are the first of the epoch
        trainer.validating = self._is_requested = True
        try:
            trainer.fit_loop.epoch_loop.val_loop.run()
        finally:
            self._is_requested = False
        trainer.training = True
        logger._first_loop_iter = first_iteration


def _name(kind: str, objects: Sequence[Any]) -> Any:
    """Return a single object itself, several of them as a mapping of names, and None without any."""
    if len(objects) > 1:
        return {f"{kind}_{index}": value for index, value in enumerate(objects)}
    return objects[0] if objects else None


def _describe_missing(trainer: Any) -> str:
    return (
        f"the trainer does not validate, got limit_val_batches={trainer.limit_val_batches!r}. Pass val_dataloaders, "
        "and define validation_step in the module."
    )


def _count_tuners(trainer: Any) -> int:
    """Return the number of callbacks that tune the trainer before it trains, which Lightning has sorted first."""
    callbacks = import_module(f"{get_package(trainer)}.callbacks")
    tuners = (callbacks.BatchSizeFinder, callbacks.LearningRateFinder)
    return sum(isinstance(callback, tuners) for callback in trainer.callbacks)
