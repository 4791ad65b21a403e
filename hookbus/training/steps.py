"""The default steps of the Trainer: forward, backward, update; and judging a batch.

Everything here can be replaced or wrapped by a hook, through the actions `train_step`, `val_step` and `test_step`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from hookbus._numbers import check_count
from hookbus.errors import ConfigError, LoopError
from hookbus.model.layouts import whole
from hookbus.training.batches import detached
from hookbus.training.outputs import named, trainable_loss_in

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookbus.ranks import Ranks
    from hookbus.run import Run

__all__ = ["Precision", "Steps"]

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Steps:
    """How one batch is trained on, and how it is judged.

    Args:
        model: called with the batch: `model(**batch)` for a mapping, `model(*inputs)` for a tuple whose last element is
            the target where there is a `loss_fn`, `model(*batch)` or `model(batch)` otherwise.
        optimizer: makes the updates; None for a model that is only judged.
        loss_fn: `loss_fn(output, target)`; None where the model returns its loss.
        step_fn: replaces all of this: `step_fn(model, batch)` returns the loss, or a mapping with it.
        accumulate: micro-batches per update.
        precision: "fp32", or autocast to "bf16" or "fp16" (with a gradient scaler).
        clip_grad_norm: the largest allowed norm of all gradients together; None for no clipping.
        device: where the model is.
        on_update: called after each update that was made.

    Raises:
        ConfigError: an argument does not hold.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        step_fn: Callable[[nn.Module, Any], Any] | None,
        accumulate: int,
        precision: Precision,
        clip_grad_norm: float | None,
        device: torch.device,
        on_update: Callable[[], None],
    ) -> None:
        if precision not in ("fp32", *DTYPES):
            raise ConfigError([f"precision: {precision!r} is none of fp32, bf16, fp16."])
        if clip_grad_norm is not None and not (isinstance(clip_grad_norm, (int, float)) and clip_grad_norm > 0):
            raise ConfigError([f"clip_grad_norm: {clip_grad_norm!r} is not more than 0; None is for no clipping."])
        self.model, self.optimizer = model, optimizer
        self.loss_fn, self.step_fn = loss_fn, step_fn
        self.clip_grad_norm = clip_grad_norm
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
        self._dtype = DTYPES.get(precision)
        self.accumulate = accumulate
        self._on_update = on_update

    @property
    def accumulate(self) -> int:
        """Micro-batches per update. To be changed between two updates, since each of a group counts for as much."""
        return self._accumulate

    @accumulate.setter
    def accumulate(self, count: int) -> None:
        check_count(count, "accumulate")
        self._accumulate = count
        self._plain = count == 1 and self.scaler is None

    def train_step(self, run: Run, batch: Any) -> dict[str, Any]:
        """Forward, backward, and the update where it is due.

        Returns:
            The outputs, detached: "loss", and what the model returned.

        Raises:
            LoopError: there is no loss to train on.
        """
        self._begin(run)
        outputs = self.propagate(run, batch, 1.0)
        if not run.should_skip_iter:
            self._count(run)
        return {name: detached(value) for name, value in outputs.items()}

    def train_parts(self, run: Run, parts: Sequence[Any], weights: Sequence[float]) -> list[dict[str, Any]]:
        """Train on one micro-batch part by part, which takes less memory.

        Args:
            run: the run.
            parts: of the batch.
            weights: what the loss of each part counts for: its share of the samples where the loss is a mean over
                them, 1 where it is a sum. The gradients then add up to those of the whole batch.

        Returns:
            What `train_step` returns, for each part. A hook that leaves the iteration out ends it, and the group that
            it belongs to begins anew.

        Raises:
            LoopError: there is no loss to train on.
        """
        assert self.optimizer is not None
        self._begin(run)
        found = []
        for part, weight in zip(parts, weights, strict=True):
            outputs = self.propagate(run, part, weight)
            found.append({name: detached(value) for name, value in outputs.items()})
            if run.should_skip_iter:
                self.optimizer.zero_grad()
                run.accumulated = 0
                return found
        self._count(run)
        return found

    def _begin(self, run: Run) -> None:
        assert self.optimizer is not None
        if run.accumulated == 0:
            self.optimizer.zero_grad()

    def propagate(self, run: Run, batch: Any, weight: float) -> dict[str, Any]:
        """Forward and backward, unless a hook leaves the iteration out in between.

        Args:
            run: the run.
            batch: what the model is called with.
            weight: what the loss counts for.

        Returns:
            The outputs, with their graph.

        Raises:
            LoopError: there is no loss to train on.
        """
        calls = run.bus.calls
        outputs = self.forward(batch) if self._dtype is None else self._autocast_forward(batch)
        loss = outputs.get("loss")
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            loss = outputs["loss"] = trainable_loss_in(outputs, self.loss_fn)
        if calls.after_forward:
            calls.after_forward(batch=batch, outputs=outputs, loss=loss)
            if run.should_skip_iter:
                return outputs
        if self._plain and weight == 1:
            loss.backward()
        else:
            self._scaled(loss if weight == 1 else loss * weight).backward()
        if calls.after_backward:
            calls.after_backward(batch=batch, outputs=outputs, loss=loss)
        return outputs

    def _count(self, run: Run) -> None:
        """A micro-batch has added its gradients: update where that is due."""
        run.accumulated += 1
        if run.accumulated >= self._accumulate:
            run.accumulated = 0  # before the update: what one that fails leaves behind is no part of the next group
            self._update(run)

    def begin_judging(self, ranks: Ranks) -> None:
        """See that all processes judge the same model. Called before each validation and test.

        Args:
            ranks: the processes.
        """

    def eval_step(self, _run: Run, batch: Any) -> dict[str, Any]:
        """Judge one batch: the outputs, the loss among them where there is one."""
        return self.forward(batch) if self._dtype is None else self._autocast_forward(batch)

    def forward(self, batch: Any) -> dict[str, Any]:
        """Call the model and name what it returns.

        Returns:
            A mapping's own items; {"output": ..., "loss": ...} for an output and a loss function; {"loss": ...} for a
            single number.
        """
        if self.step_fn is not None:
            return named(self.step_fn(self.model, batch))
        if not isinstance(batch, (tuple, list)):
            return named(self.model(**batch) if isinstance(batch, Mapping) else self.model(batch))
        if self.loss_fn is None:
            return named(self._of_model(batch))
        *inputs, target = batch
        output = self.model(*inputs)
        loss = self.loss_fn(output, target)
        if isinstance(output, Tensor) or not isinstance(output, Mapping):
            return {"loss": loss, "output": output}
        return {**output, "loss": loss}

    def _of_model(self, batch: Sequence[Any]) -> Any:
        """What a model makes of a whole batch, targets included: without a loss_fn it has the loss to find itself."""
        try:
            return self.model(*batch)
        except TypeError as error:
            if _takes(self.model, batch):
                raise
            raise LoopError(
                f"{type(self.model).__name__}.forward does not take the {len(batch)} parts of a batch: {error}. Give "
                "loss_fn= to the Trainer (`loss:` in a run file), or a step_fn= of your own."
            ) from None

    def _autocast_forward(self, batch: Any) -> dict[str, Any]:
        with torch.autocast(self.device.type, dtype=self._dtype):
            return self.forward(batch)

    def _scaled(self, loss: Tensor) -> Tensor:
        loss = loss / self.accumulate
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _update(self, run: Run) -> None:
        """One optimizer update; with a scaler it may be left out, and then counts for nothing."""
        assert self.optimizer is not None
        if self.clip_grad_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
            run.log(grad_norm=whole(norm))
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if run.clock.stepped:
            self._on_update()


def _takes(model: nn.Module, batch: Sequence[Any]) -> bool:
    """Whether a model can be called with the parts of a batch."""
    try:
        inspect.signature(model.forward).bind(*batch)
    except TypeError:
        return False
    return True
