"""The Trainer: a training loop that emits events and contains no policy.

    before_run
      before_train
        for each epoch:
          before_epoch
            before_train_epoch
              for each batch: before_train_iter, train_step, after_train_iter
            after_train_epoch            -> validation, if requested
          after_epoch                    -> checkpoints, stop
      after_train
    after_run, cleanup

Hooks decide when to validate, save, stop and log. The loop only processes their requests.
"""

from __future__ import annotations

from hookbus._run.interrupts import handle_interrupts
from hookbus._run.run import Run
from hookbus._utils.arguments import check_keywords
from hookbus.data.batches import move_to_device
from hookbus.hook import Hook
from hookbus.trainer.evaluations import TrainerEvaluations
from hookbus.trainer.initial_weights import load_initial_weights
from hookbus.trainer.preconditions import count_scheduler_steps


class Trainer(TrainerEvaluations):
    """Train a model and emit the events of the run."""

    @check_keywords("Trainer.fit")
    def fit(self, *, epochs: int | None = None, iterations: int | None = None, tokens: int | None = None) -> Run:
        """Train up to the limit. A second call continues from the current state.

        Args:
            epochs: New limit in epochs, counted from the start of the first training.
            iterations: New limit in iterations, counted from the start of the first training.
            tokens: New limit in tokens, counted from the start of the first training.

        Returns:
            The run. `run.outcome` is the reason for its end.

        Raises:
            HookbusError: If a precondition is not met, as in `check`. Nothing is written and no event is emitted.
            KeyboardInterrupt: On Ctrl-C, after a last checkpoint if a checkpoint hook is registered.
        """
        if (epochs, iterations, tokens) != (None, None, None):
            self.set_limit(epochs, iterations, tokens)
        with self.runs.run_scope("train") as run, handle_interrupts(run):
            load_initial_weights(self, run)
            self._train(run)
        # `handle_interrupts` has converted the first Ctrl-C to a stop request, so the exception is raised again here.
        if run.outcome == "interrupted":
            raise KeyboardInterrupt
        return run

    train = fit

    def _train(self, run: Run) -> None:
        fire = self.bus.fire
        if self.validate_first:
            run.request_validation("before training")
        fire("before_train")
        # Hooks may have changed the batch size, and thereby the number of steps.
        self.scheduler.warn_if_never_stepped(run.clock, run.logger)
        self.scheduler.check_length(count_scheduler_steps(self, run.epochs_done, run.iters_done))
        for _ in run.epochs():
            fire("before_epoch")
            fire("before_train_epoch")
            self._train_epoch(run)
            if self._validates_by_default():
                run.request_validation("end of the epoch")
            fire("after_train_epoch")
            self.scheduler.after_epoch(run.epoch_complete)
            fire("after_epoch")
        self._warn_pending_gradients(run)
        fire("after_train")

    def _train_epoch(self, run: Run) -> None:
        assert self.train_loader is not None
        # Looked up once per epoch: this loop is the hot path.
        calls, replacements, moves = self.bus.calls, run.replacements, self.device.type != "cpu"
        tokens = run.clock.tokens
        for batch_idx, batch in run.batches(self.train_loader):
            if moves:
                tokens.measure_ahead(batch)
                batch = move_to_device(batch, self.device)
            calls.before_train_iter(batch_idx=batch_idx, batch=batch)
            if replacements.entries:
                batch = run.resolve_batch(batch)
            outputs = None if run.should_skip_iter else calls.train_step(run, batch)
            calls.after_train_iter(batch_idx=batch_idx, batch=batch, outputs=outputs)
            del batch, outputs  # release the batch and the graph before the next forward pass allocates its memory

    def _validates_by_default(self) -> bool:
        """Return whether to validate at the end of each epoch: the default unless a hook schedules validations."""
        return self.val_loader is not None and not any(
            isinstance(hook, Hook) and hook.schedules_validation for hook in self.bus.hooks.values()
        )

    def _warn_pending_gradients(self, run: Run) -> None:
        """Warn if the last micro-batches did not trigger an optimizer step."""
        if run.accumulated and not run.stops:
            run.logger.warning(
                "The last %s of %s accumulated micro-batches did not trigger an optimizer step. Resuming the run uses "
                "them; to avoid it, set the number of iterations to a multiple of `accumulate`.",
                run.accumulated,
                self.steps.accumulate,
            )
