"""The guard against losses that are not finite."""

from __future__ import annotations

from typing import Any

import torch

from hookbus import Hook, Run, every, hookimpl
from hookbus.errors import HookError, LoopError
from hookbus_guards.config import CheckInvalidLossConfig
from hookbus_guards.terms import describe, loss_terms, read
from hookbus_guards.weights import has_invalid_weights

__all__ = ["CheckInvalidLossHook"]


class CheckInvalidLossHook(Hook):
    """Looks for NaN and inf in the terms of the loss, and tells which term, where, and what it was before.

    Attributes:
        last_good: (iteration from 1, value) of the last finite loss that was seen, None before the first.
        skipped: micro-batches that were left out so far.
    """

    Config = CheckInvalidLossConfig
    config: CheckInvalidLossConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._begin()

    def _begin(self) -> None:
        self.last_good: tuple[int, float] | None = None
        self.skipped = self._in_a_row = 0
        self._looked_at = -1  # the index of the iteration whose loss was seen before its backward

    def before_train(self, run: Run) -> None:
        """A training that begins at zero has seen nothing yet."""
        if run.iters_done == 0:
            self._begin()
        self._looked_at = -1

    @hookimpl(when=every("interval"))
    def after_forward(self, run: Run, outputs: Any, loss: Any) -> None:
        """Look at the loss before it is propagated back, where that is asked for."""
        if self.config.looks_first:
            self._looked_at = run.iter
            if not self._is_good(run, outputs, loss):
                run.request_skip_iter("the loss is not finite")

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run, outputs: Any, loss: Any) -> None:
        """Look at the loss of the iteration, unless that was done already.

        Raises:
            HookError: the loop shows no loss before the backward, or made an update where it was asked not to train.
            LoopError: the loss is not finite, see the class.
        """
        if self._looked_at != run.iter and run.should_skip_iter:
            return  # another hook has left it out
        if not self.config.looks_first:
            self._is_good(run, outputs, loss)
        elif self._looked_at != run.iter:
            raise HookError(
                f"hook {self.name!r} looks at the loss before the backward, and this loop emits no after_forward: emit "
                "it between forward and backward, with outputs or loss, or say before_step: false."
            )
        elif self._in_a_row and run.stepped and run.optimizer is not None:
            raise HookError(
                f"hook {self.name!r} asked not to train on this micro-batch, and the loop made an update all the same: "
                "let it look at run.should_skip_iter after it has emitted after_forward."
            )

    def before_save_checkpoint(self, run: Run) -> None:
        """Refuse a checkpoint of weights that are not finite, because the loss is checked every `interval` iterations.

        Raises:
            LoopError: If the weights are not finite and the policy is not "stop".
        """
        invalid = run.model is not None and has_invalid_weights(run.model)
        if not run.ranks.reduce("guards: are the weights invalid", torch.tensor(int(invalid)), "max"):
            return
        message = f"The weights are not finite after iteration {run.iters_done}, so no checkpoint is saved."
        if self.config.policy != "stop":
            raise LoopError(f"{message} Lower the learning rate, clip the gradients, or set `before_step: true`.")
        run.request_abort(message)

    def state_dict(self) -> dict[str, Any]:
        """The last good loss, and what was left out."""
        return {"last_good": self.last_good, "skipped": self.skipped, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.last_good, self.skipped, self._in_a_row = state["last_good"], state["skipped"], state["in_a_row"]

    # -- inside ----------------------------------------------------------------------------------

    def _is_good(self, run: Run, outputs: Any, loss: Any) -> bool:
        """Whether the loss is finite; what follows from one that is not is done.

        Raises:
            LoopError: it is not, and the policy is to raise; or too many were left out.
            HookError: there is no loss.
        """
        terms = loss_terms(outputs, loss)
        if not terms:
            raise HookError(
                f"hook {self.name!r} finds no number in what the iteration returned: let the step return the loss, or "
                'emit after_train_iter with outputs={"loss": loss}.'
            )
        good, value = read(terms)
        if good:
            self.last_good = run.clock.number("iter"), value
        message = self._of_all(run, "" if good else self._message(run, outputs, loss))
        if message:
            self._act(run, message)
        else:
            self._in_a_row = 0
        return not message

    def _of_all(self, run: Run, message: str) -> str:
        """What is wrong on any process, where all of them leave the micro-batch out or none does."""
        ranks = run.ranks
        if ranks.world_size == 1 or not self.config.leaves_out:
            return message
        if not ranks.reduce("guards: is a loss not finite", torch.tensor(int(bool(message))), "max"):
            return ""
        found = ranks.gather("guards: losses that are not finite", message)
        return next(f"Rank {rank}: {each}" for rank, each in enumerate(found) if each)

    def _act(self, run: Run, message: str) -> None:
        self._in_a_row += 1
        if self.config.policy == "raise":
            raise LoopError(
                f"{message} Lower the learning rate, clip the gradients, or look at the data of this batch."
            )
        if self.config.policy == "stop":
            self._stop(run, message)
        elif self._in_a_row > self.config.max_skips:
            raise LoopError(f"{message} That makes {self._in_a_row} in a row; max_skips is {self.config.max_skips}.")
        else:
            self.skipped += 1
            run.logger.warning("%s The micro-batch is left out.", message)

    def _stop(self, run: Run, message: str) -> None:
        # An optimizer step with this loss has broken the weights, even if they are still finite.
        if run.stepped or run.model is None or has_invalid_weights(run.model, gradients=run.mid_accumulation):
            run.request_abort(message)
        else:
            run.request_stop(message)

    def _message(self, run: Run, outputs: Any, loss: Any) -> str:
        groups = run.optimizer.param_groups if run.optimizer is not None else []
        rates = ", ".join(dict.fromkeys(f"{float(group['lr']):.6g}" for group in groups)) or "unknown"
        before = (
            "none was seen" if self.last_good is None else f"{self.last_good[1]:.6g} at iteration {self.last_good[0]}"
        )
        return (
            f"The loss is not finite at iteration {run.clock.number('iter')}, epoch {run.clock.number('epoch')}: "
            f"{describe(outputs, loss)}. Learning rate {rates}; last good loss: {before}."
        )
