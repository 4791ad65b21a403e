"""Default steps of the Trainer: forward, backward, optimizer step and evaluation of one batch.

Hooks can replace or wrap them through the actions `train_step`, `val_step`, `test_step` and `predict_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from hookbus._training.predictions import matches_signature, predict_batch
from hookbus._utils.arguments import check_count
from hookbus._utils.torch_versions import require_torch
from hookbus.data.batches import detach_tree
from hookbus.distributed.sharding import to_full_tensors
from hookbus.errors import ConfigError, LoopError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookbus._run.run import Run
    from hookbus.distributed.collectives import Collectives

Precision = Literal["fp32", "bf16", "fp16"]
AUTOCAST_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Steps:
    """Training and evaluation steps for one batch.

    Args:
        model: The model. It is called as `model(**batch)` for a mapping, `model(*inputs)` for a tuple or list
            `(*inputs, target)` if there is a `loss_fn`, `model(*batch)` for a tuple or list otherwise, and
            `model(batch)` for any other batch.
        optimizer: The optimizer, or None if the model is only evaluated.
        loss_fn: Function `loss_fn(output, target)`, or None if the model returns its loss.
        step_fn: Function `step_fn(model, batch)` that replaces model call and loss, and returns the loss or a mapping
            with "loss".
        accumulate: Number of micro-batches per optimizer step.
        precision: "fp32", or autocast to "bf16" or "fp16" (with a gradient scaler).
        clip_grad_norm: Maximum norm of all gradients together, or None for no clipping.
        device: The device of the model.

    Raises:
        ConfigError: If an argument is invalid.
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
    ) -> None:
        if precision not in ("fp32", *AUTOCAST_DTYPES):
            raise ConfigError(f"precision: expected 'fp32', 'bf16' or 'fp16', got {precision!r}.")
        if clip_grad_norm is not None and not (isinstance(clip_grad_norm, (int, float)) and clip_grad_norm > 0):
            raise ConfigError(
                f"clip_grad_norm: expected a number > 0, got {clip_grad_norm!r}. Use None for no clipping."
            )
        self.model, self.optimizer = model, optimizer
        self.loss_fn, self.step_fn = loss_fn, step_fn
        self.clip_grad_norm = clip_grad_norm
        self.device = device
        if precision == "fp16" and device.type == "mps":
            require_torch("precision: fp16 on MPS")  # an older gradient scaler computes in float64
        # bf16 has the exponent range of fp32, so its gradients do not underflow and need no scaler.
        self.scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
        self._dtype = AUTOCAST_DTYPES.get(precision)
        self.accumulate = accumulate

    @property
    def accumulate(self) -> int:
        """Number of micro-batches per optimizer step.

        Set it between two optimizer steps only: the loss of every micro-batch of a group is divided by this number.
        """
        return self._accumulate

    @accumulate.setter
    def accumulate(self, count: int) -> None:
        check_count(count, "accumulate")
        self._accumulate = count
        # Saves a division of the loss, one kernel launch per iteration, in the most common configuration.
        self._backward_unscaled = count == 1 and self.scaler is None

    def train_step(self, run: Run, batch: Any) -> dict[str, Any]:
        """Compute forward and backward, and the optimizer step if the micro-batch completes its group.

        Args:
            run: The run.
            batch: A batch on the device of the model.

        Returns:
            Outputs of the model with "loss", detached.

        Raises:
            LoopError: If there is no loss, or it cannot be trained on.
        """
        self._zero_grad_if_due(run)
        outputs = self.forward_backward(run, batch, 1.0)
        if not run.should_skip_iter:
            self._finish_micro_batch(run)
        # Detached, so that the graph is freed before the next iteration even if a hook keeps the outputs. Tensors need
        # no call of `detach_tree`.
        return {n: v.detach() if type(v) is Tensor and v.requires_grad else detach_tree(v) for n, v in outputs.items()}

    def train_micro_batches(self, run: Run, parts: Sequence[Any], weights: Sequence[float]) -> list[dict[str, Any]]:
        """Train on one micro-batch in smaller parts, which reduces peak memory.

        If a hook skips the iteration, the remaining parts are not processed and the accumulation group is restarted.

        Args:
            run: The run.
            parts: Parts of the batch, each in the form of a batch.
            weights: Factor of the loss of each part: its fraction of the samples if the loss is a mean over samples, 1
                if it is a sum. The accumulated gradients then equal the gradients of the full batch.

        Returns:
            Return values of `train_step` for the processed parts.

        Raises:
            LoopError: If there is no loss, or it cannot be trained on.
        """
        assert self.optimizer is not None
        self._zero_grad_if_due(run)
        results = []
        for part, weight in zip(parts, weights, strict=True):
            outputs = self.forward_backward(run, part, weight)
            results.append({name: detach_tree(value) for name, value in outputs.items()})
            if run.should_skip_iter:
                # The gradients of earlier parts cannot be separated from those of earlier micro-batches of the group.
                self.optimizer.zero_grad()
                run.accumulated = 0
                return results
        self._finish_micro_batch(run)
        return results

    def _zero_grad_if_due(self, run: Run) -> None:
        assert self.optimizer is not None
        # Before the backward instead of after the optimizer step, so that hooks can read the gradients in between.
        if run.accumulated == 0:
            self.optimizer.zero_grad()

    def forward_backward(self, run: Run, batch: Any, weight: float) -> dict[str, Any]:
        """Compute forward and backward; skip the backward if a hook skips the iteration after the forward.

        Raises:
            LoopError: If there is no loss, or it cannot be trained on.
        """
        calls = run.bus.calls
        outputs = self.forward(batch) if self._dtype is None else self._autocast_forward(batch)
        loss = outputs.get("loss")
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            loss = outputs["loss"] = extract_scalar_loss(outputs, self.loss_fn)
        if calls.after_forward:
            calls.after_forward(batch=batch, outputs=outputs, loss=loss)
            if run.should_skip_iter:
                return outputs
            if run.replacements.entries:
                loss = outputs["loss"] = run.resolve_loss(loss).reshape(())
        # Hooks receive the unscaled loss; only the backward uses the scaled one.
        if self._backward_unscaled and weight == 1:
            loss.backward()
        else:
            self._scale_loss(loss if weight == 1 else loss * weight).backward()
        if calls.after_backward:
            calls.after_backward(batch=batch, outputs=outputs, loss=loss)
        return outputs

    def _finish_micro_batch(self, run: Run) -> None:
        """Count a micro-batch, and run the optimizer step if it completes its group."""
        run.accumulated += 1
        if run.accumulated >= self._accumulate:
            # Reset before the step: if the step fails, its gradients must not become part of the next group.
            run.accumulated = 0
            self._optimizer_step(run)

    def local(self) -> AbstractContextManager[None]:
        """Return a context manager in which the steps do not communicate with other ranks.

        Raises:
            LoopError: If the parameters are sharded, so that each step communicates.
        """
        return nullcontext()

    def prepare_eval(self, ranks: Collectives) -> None:
        """Make sure that all ranks evaluate the same model. Called before each validation and test."""

    def eval_step(self, _run: Run, batch: Any) -> dict[str, Any]:
        """Evaluate one batch and return the outputs, with "loss" if there is one."""
        return self.forward(batch) if self._dtype is None else self._autocast_forward(batch)

    def predict_step(self, _run: Run, batch: Any) -> dict[str, Any]:
        """Return the outputs of the model for one batch, without a loss."""
        context = nullcontext() if self._dtype is None else torch.autocast(self.device.type, dtype=self._dtype)
        with context:
            return predict_batch(self.model, batch, step_fn=self.step_fn, has_loss_fn=self.loss_fn is not None)

    def forward(self, batch: Any) -> dict[str, Any]:
        """Call the model and the loss function.

        Returns:
            Outputs by name: the items of a mapping, or "output" for a single output; and "loss" if there is one.
        """
        if self.step_fn is not None:
            return outputs_to_dict(self.step_fn(self.model, batch))
        if not isinstance(batch, (tuple, list)):
            return outputs_to_dict(self.model(**batch) if isinstance(batch, Mapping) else self.model(batch))
        if self.loss_fn is None:
            return outputs_to_dict(self._call_model(batch))
        *inputs, target = batch
        output = self.model(*inputs)
        loss = self.loss_fn(output, target)
        # Tensor first: a test against the abstract base class Mapping is several times slower.
        if isinstance(output, Tensor) or not isinstance(output, Mapping):
            return {"loss": loss, "output": output}
        return {**output, "loss": loss}

    def _call_model(self, batch: Sequence[Any]) -> Any:
        """Call the model with all elements of a batch, including the targets."""
        try:
            return self.model(*batch)
        except TypeError as error:
            # A TypeError raised inside of `forward` is not about the arguments of this call.
            if matches_signature(self.model, batch):
                raise
            raise LoopError(
                f"{type(self.model).__name__}.forward: cannot be called with the {len(batch)} elements of a batch: "
                f"{error}. Pass `loss_fn` to the Trainer (`loss:` in a run file), or pass `step_fn`."
            ) from None

    def _autocast_forward(self, batch: Any) -> dict[str, Any]:
        with torch.autocast(self.device.type, dtype=self._dtype):
            return self.forward(batch)

    def _scale_loss(self, loss: Tensor) -> Tensor:
        loss = loss / self.accumulate
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _optimizer_step(self, run: Run) -> None:
        """Clip the gradients and run the optimizer step, which a gradient scaler may skip."""
        assert self.optimizer is not None
        if self.clip_grad_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)  # the limit applies to the true gradients
            norm = nn.utils.clip_grad_norm_([*iter_parameters(self.model, self.loss_fn)], self.clip_grad_norm)
            run.log(grad_norm=to_full_tensors(norm))  # a DTensor if the parameters are sharded
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()


def iter_parameters(model: nn.Module, loss_fn: object) -> Iterator[nn.Parameter]:
    """Yield the parameters of a model, and those of a loss function that is a module."""
    yield from model.parameters()
    if isinstance(loss_fn, nn.Module):
        yield from loss_fn.parameters()


def outputs_to_dict(output: Any) -> dict[str, Any]:
    """Convert the return value of a model to a dictionary.

    Args:
        output: A mapping, a tensor with one element (the loss), a pair (loss, output), or any other value.

    Returns:
        A copy of a mapping; otherwise a dictionary with "loss", "output" or both.
    """
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, Tensor) and output.numel() == 1:
        return {"loss": output}
    if isinstance(output, (tuple, list)) and len(output) == 2 and isinstance(output[0], Tensor):
        first, second = output
        # A pair without a single number in front, such as two heads or (output, hidden state), contains no loss.
        if first.numel() == 1:
            return {"loss": first, "output": second}
    return {"output": output}


def extract_loss(outputs: Mapping[str, Any], loss_fn: object) -> Tensor:
    """Return the loss among the outputs.

    Raises:
        LoopError: If the loss is missing or has more than one element.
    """
    loss = outputs.get("loss")
    if not isinstance(loss, Tensor):
        raise LoopError(_missing_loss_message(outputs, loss_fn))
    if loss.numel() != 1:
        raise LoopError(f"loss: expected a single number, got shape {tuple(loss.shape)}. Take its mean or sum.")
    return loss


def extract_scalar_loss(outputs: Mapping[str, Any], loss_fn: object) -> Tensor:
    """Return the loss among the outputs for a backward pass.

    Raises:
        LoopError: If the loss is missing, has more than one element, or depends on no trainable parameter.
    """
    loss = extract_loss(outputs, loss_fn)
    if not loss.requires_grad:
        raise LoopError(
            "loss: does not depend on any parameter that requires a gradient. Remove detach() or no_grad() from the "
            "computation of the loss, and make sure that not every parameter is frozen."
        )
    return loss.reshape(())


def _missing_loss_message(outputs: Mapping[str, Any], loss_fn: object) -> str:
    items = ", ".join(f"{name}: {_describe_value(value)}" for name, value in outputs.items())
    # `Steps.forward` calls loss_fn for tuples and lists only, so the usual cause is another type of batch.
    if loss_fn is None:
        fix = (
            "Pass `loss_fn` (for example F.cross_entropy), return a single number or a mapping with 'loss' from the "
            "model, or pass `step_fn`."
        )
    else:
        fix = "Use a loader whose batches have the form (inputs, target), which `loss_fn` requires, or pass `step_fn`."
    return f"loss: missing from the outputs of the model, got {{{items}}}. {fix}"


def _describe_value(value: Any) -> str:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
