"""Bridge of the Trainer: the run during a training, and what hooks request.

A callback alone receives neither batch, loss and gradients nor the failure of a training. Methods of the Trainer object
are therefore replaced as well; its class is not modified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

from hookbus import Hook
from hookbus.bridge import Bridge
from hookbus.errors import ConfigError
from hookbus_transformers.callback import BridgeCallback, insert_callback
from hookbus_transformers.capabilities import CAPABILITIES
from hookbus_transformers.checkpoints import load_averages, read_state, write_state
from hookbus_transformers.evaluation import Evaluations
from hookbus_transformers.outputs import accepts_argument, get_argument
from hookbus_transformers.preconditions import count_steps, find_problems, get_limit
from hookbus_transformers.steps import TrainingSteps


class TransformersBridge(Bridge):
    """Run of a bus in the trainings of a `transformers.Trainer`, or of a subclass such as `Seq2SeqTrainer`.

    Attributes:
        steps: Training iterations.
        evaluations: Evaluations during a training.
    """

    capabilities = CAPABILITIES
    metric_prefixes = ("eval_",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps, self.evaluations = TrainingSteps(self), Evaluations(self)
        self._callback = BridgeCallback(self)
        self._reset()

    def _reset(self) -> None:
        """Begin a new training."""
        self._requested: set[str] = set()  # attributes of `TrainerControl`
        self._has_begun = False  # whether the first epoch has begun
        self._is_in_step = False  # whether requests wait for the end of an optimizer step or of an epoch
        self._is_ending_epoch = False  # whether `after_epoch` follows the evaluation of the epoch
        self._trial: Any = None
        self._state: dict[str, Any] = {}  # state of the checkpoint that is being saved
        self._saved: Path | None = None  # checkpoint that is not complete yet
        self.steps.reset()
        self.evaluations.reset()

    def attach(self) -> None:
        """Replace methods of the Trainer, and insert a callback.

        Raises:
            ConfigError: If the Trainer is connected with a bus already.
        """
        if any(isinstance(callback, BridgeCallback) for callback in self.host.callback_handler.callbacks):
            raise ConfigError(
                ["bus.attach: the Trainer is connected with a bus already. Call detach() of its bridge first."]
            )
        self._returns_outputs = accepts_argument(self.host.compute_loss, "return_outputs")
        methods: dict[str, Callable[..., Any]] = {
            "_inner_training_loop": self._train,
            "_load_best_model": self._load_best_model,
            "_maybe_log_save_evaluate": self._end_step,
            "_save_checkpoint": self._save_checkpoint,
            "compute_loss": self._compute_loss,
            "evaluate": self.evaluations.evaluate,
            "prediction_step": self.evaluations.prediction_step,
            "save_model": self._save_model,
            "training_step": self.steps.training_step,
        }
        for name, method in methods.items():
            self.replace(self.host, name, partial(_wrap, method))
        insert_callback(self.host, self._callback)

    def detach(self) -> None:
        """Restore the methods of the Trainer, and remove the callback. Idempotent."""
        super().detach()
        self.host.pop_callback(self._callback)

    def is_validation(self, prefix: str) -> bool:
        """Return whether evaluations with a prefix of their metrics, such as `eval_`, are validations of the run."""
        return prefix in self._prefixes

    # -- the training ----------------------------------------------------------------------------

    def _train(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replace the training loop: restore the state of its checkpoint, and end the run of a failed training."""
        self._reset()
        hooks = [hook for hook in self.bus.hooks.values() if isinstance(hook, Hook)]
        if problems := list(find_problems(self.host, hooks)):
            raise ConfigError(problems)
        self._trial = get_argument(original, "trial", args, kwargs)
        checkpoint = get_argument(original, "resume_from_checkpoint", args, kwargs)
        if checkpoint is not None:
            self.set_state(read_state(checkpoint))
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            self.close(error)
            raise

    def begin_training(self, loader: Any) -> None:
        """Begin the run.

        Args:
            loader: Training loader.
        """
        trainer = self.host
        # Without the scheduler, which the Trainer steps: the hook param_scheduler would step it a second time.
        self.open(
            model=trainer.model,
            optimizer=trainer.optimizer,
            scaler=trainer.accelerator.scaler,
            device=trainer.args.device,
            train_loader=loader,
            **get_limit(trainer, loader),
            fresh=True,  # the counts of each training of the Trainer start from 0
        )

    def begin_epoch(self) -> None:
        """Emit the events at the start of an epoch."""
        self._is_in_step = False
        if not self._has_begun:
            self._complete_resumed_epoch()
        self._has_begun = True
        self.bus.emit("before_epoch")
        self.bus.emit("before_train_epoch")
        self._is_in_step = True

    def _complete_resumed_epoch(self) -> None:
        """End the epoch of a checkpoint that was saved after its last step, and before its end."""
        run, steps = self.active_run, count_steps(self.host, self.active_run.train_loader)
        if steps is not None and run.epochs_done < self.host.state.global_step // steps:
            for point in ("before_epoch", "before_train_epoch", "after_train_epoch", "after_epoch"):
                self.bus.emit(point)

    def end_train_epoch(self) -> None:
        """Emit `after_train_epoch`. `after_epoch` follows the evaluation of the epoch, if there is one."""
        self.bus.emit("after_train_epoch")
        self._is_ending_epoch = True

    def _end_epoch(self) -> None:
        self._is_ending_epoch = False
        self.bus.emit("after_epoch")
        self._apply_requests()

    def end_training(self) -> None:
        """End the run. What its last events request is carried out at once."""
        self._is_in_step = False
        self.close()

    def _load_best_model(self, original: Callable[..., Any]) -> None:
        """Replace the loading of the best checkpoint: load the averaged weights if they were evaluated."""
        self.end_training()
        original()
        best = self.host.state.best_model_checkpoint
        if load_averages(self.host.model, best):
            self.active_run.logger.info("The averaged weights of %s, with which it was evaluated, are loaded.", best)

    # -- steps and evaluations ---------------------------------------------------------------------

    def _compute_loss(
        self, original: Callable[..., Any], model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """Replace `Trainer.compute_loss`: report loss and outputs of a batch that is trained or evaluated."""
        if not (self.steps.is_computing or self.evaluations.is_computing):
            return original(model, inputs, return_outputs=return_outputs, **kwargs)
        # A subclass that only trains may have no such argument.
        options = {**kwargs, "return_outputs": True} if return_outputs or self._returns_outputs else kwargs
        results = original(model, inputs, **options)
        loss, outputs = results if isinstance(results, tuple) else (results, None)
        if self.evaluations.is_computing:
            self.evaluations.receive_outputs(outputs)
        else:
            loss = self.steps.receive_loss(loss, outputs, kwargs.get("num_items_in_batch"))
        return (loss, outputs) if return_outputs else loss

    def begin_evaluation(self) -> None:
        """Begin a validation. One before the first epoch is a sanity check."""
        self.active_run.begin_validation(sanity=not self._has_begun)

    def end_evaluation(self) -> None:
        """End a validation, and the epoch if its training part is complete."""
        self.active_run.end_validation()
        self._requested.discard("should_evaluate")
        if self._is_ending_epoch:
            self._end_epoch()
        self._apply_requests()

    def _end_step(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Replace the end of an optimizer step or epoch, at which the Trainer evaluates and saves."""
        if not self.is_open:
            original(*args, **kwargs)
            return
        self._apply_requests()
        if self._is_ending_epoch and not self.host.control.should_evaluate:
            self._end_epoch()
        with self.omit_refused_save():
            original(*args, **kwargs)
            if "should_save" in self._requested:
                # The strategy `best` has discarded the request in favor of its own decision.
                self._apply_requests()
                original(*args, **kwargs)
        if self.active_run.aborted:
            self._apply_requests()  # of a hook that has refused the checkpoint
        self._report_stop()

    def _report_stop(self) -> None:
        """Stop the run if a callback has stopped the Trainer before its end."""
        trainer, run = self.host, self.active_run
        is_before_end = trainer.state.global_step < trainer.state.max_steps
        if trainer.control.should_training_stop and is_before_end and not run.should_stop:
            run.request_stop("a callback of the Trainer")
            run.settle()

    # -- checkpoints -------------------------------------------------------------------------------

    def _save_checkpoint(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Replace the save of a checkpoint: collect the state of the hooks, which may refuse it, before any file."""
        self._state = self.get_state()  # on all ranks: a collective call
        try:
            original(*args, **kwargs)
        finally:
            self._state = {}

    def _save_model(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Replace `Trainer.save_model`, with which each checkpoint begins: save the state of the hooks in it."""
        original(*args, **kwargs)
        directory = get_argument(original, "output_dir", args, kwargs)
        # A call of the user saves the model only.
        if self._state and directory is not None and get_argument(original, "_internal_call", args, kwargs):
            if self.host.args.should_save:
                write_state(directory, self._state)
            self._saved = Path(directory)

    def end_save(self) -> None:
        """Report a complete checkpoint."""
        self._requested.discard("should_save")
        if self._saved is not None:
            self.report_save(self._saved)
            self._saved = None

    # -- learning rate -----------------------------------------------------------------------------

    def describe_lr_schedule(self) -> str:
        """Return the scheduler of the Trainer, and how to train with a constant learning rate; "" if it is."""
        trainer = self.host
        if not trainer._created_lr_scheduler:
            name = type(trainer.lr_scheduler).__name__
            return f"the scheduler {name} of the Trainer. Pass no scheduler, and set lr_scheduler_type='constant'"
        kind = str(trainer.args.lr_scheduler_type.value)
        return "" if kind == "constant" else f"lr_scheduler_type={kind!r}. Set it to 'constant'"

    # -- what hooks request ------------------------------------------------------------------------

    @property
    def can_validate(self) -> bool:
        """Whether the Trainer has a dataset for evaluations."""
        return self.host.eval_dataset is not None

    def stop(self, reasons: Sequence[str]) -> None:
        """End the training after the current optimizer step."""
        self._requested.add("should_training_stop")

    def stop_epoch(self) -> None:
        """End the epoch after the current optimizer step."""
        self._requested.add("should_epoch_stop")

    def save(self, reasons: Sequence[str]) -> None:
        """Save a checkpoint after the current optimizer step, or now if none is in progress."""
        if self._is_in_step:
            self._requested.add("should_save")
        else:
            with self.omit_refused_save():
                self.host._save_checkpoint(self.host.model, self._trial)
                self.end_save()

    def validate(self) -> None:
        """Evaluate after the current optimizer step, or now if none is in progress."""
        if self._is_in_step:
            self._requested.add("should_evaluate")
        else:
            self.host.evaluate()

    def _apply_requests(self) -> None:
        """Set what hooks have requested in the control object of the Trainer."""
        control = self.host.control
        for name in self._requested:
            setattr(control, name, True)
        self._requested &= {"should_save", "should_evaluate"}  # until they are carried out
        if self.active_run.aborted:
            # The weights are corrupted: a checkpoint could replace a valid one.
            control.should_evaluate = control.should_save = False
            self._requested.clear()


def _wrap(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `method` with the original method as its first argument."""
    return wraps(original)(partial(method, original))
