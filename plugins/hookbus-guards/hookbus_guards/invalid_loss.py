"""Guard against losses and weights that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hookbus import Hook, Needs, Run, every, hookimpl
from hookbus.checkpoint import schema
from hookbus.errors import HookError, LoopError
from hookbus_guards.config import CheckInvalidLossConfig


class CheckInvalidLossHook(Hook):
    """Check the terms of the loss for NaN and infinities, and report the invalid terms and the last finite loss.

    Attributes:
        last_good: Pair (iteration from 1, value) of the last finite loss that was checked; None before the first.
        skipped: Number of skipped micro-batches.
    """

    Config = CheckInvalidLossConfig
    config: CheckInvalidLossConfig
    state_schema = schema.record(
        {
            "last_good": schema.nullable(schema.list_of(schema.any_value, 2, 2)),
            "skipped": schema.integer(),
            "in_a_row": schema.integer(),
        }
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._reset()

    def _reset(self) -> None:
        self.last_good: tuple[int, float] | None = None
        self.skipped = self._consecutive_skips = 0
        self._checked_iteration = -1  # index of the iteration whose loss was checked before the backward pass

    @property
    def needs(self) -> Needs:
        """The loss, and what the policy requires: the point before the backward pass, skips, or stops."""
        config = self.config
        requests = {"raise": (), "skip": ("skip",), "stop": ("stop", "skip") if config.before_step else ("stop",)}
        points = ("before_train_iter", "after_forward") if config.checks_before_step else ()
        return Needs(points=points, requests=requests[config.policy], loss=True)

    def before_train(self, run: Run) -> None:
        """Reset the state if the training starts from scratch."""
        if run.iters_done == 0:
            self._reset()
        self._checked_iteration = -1

    @hookimpl(when=every("interval"), frequency=False)
    def after_forward(self, run: Run, outputs: Any, loss: Any) -> None:
        """Check the loss before the backward pass, if configured, and request to skip an invalid one."""
        if self.config.checks_before_step:
            self._checked_iteration = run.iter
            if not self._check_loss(run, outputs, loss):
                run.request_skip_iter("the loss is not finite")

    @hookimpl(when=every("interval"), frequency=False)
    def after_train_iter(self, run: Run, outputs: Any, loss: Any) -> None:
        """Check the loss of the iteration, unless it was checked before the backward pass.

        Raises:
            HookError: If the loop emits no `after_forward` although the loss is checked before the backward pass, or
                performs an optimizer step despite a skip request.
            LoopError: If the loss is not finite and `policy` is "raise".
        """
        if self._checked_iteration != run.iter and run.should_skip_iter:
            return  # Another hook requested the skip, so there may be no loss.
        if not self.config.checks_before_step:
            self._check_loss(run, outputs, loss)
        elif self._checked_iteration != run.iter:
            raise HookError(
                f"hook {self.name!r} checks the loss before the backward pass, but this loop emits no after_forward. "
                "Emit `after_forward` with `outputs` or `loss` between forward and backward, or set "
                "`before_step: false`."
            )
        elif self._consecutive_skips and run.stepped and run.optimizer is not None:
            raise HookError(
                f"hook {self.name!r} requested to skip this micro-batch, but the loop performed an optimizer step. "
                "Check `run.should_skip_iter` after emitting `after_forward`."
            )

    def before_save_checkpoint(self, run: Run) -> None:
        """Prevent a checkpoint of weights that are not finite.

        Raises:
            LoopError: If the weights are not finite and the policy is not "stop".
        """
        # The loss is checked every `interval` iterations only, so the weights may be invalid before the next check.
        invalid = run.model is not None and has_invalid_weights(run.model)
        # All ranks raise or none: a rank that raises alone leaves the others blocked in the next collective call.
        if not run.ranks.all_reduce("guards: any invalid weights", torch.tensor(int(invalid)), "max"):
            return
        message = f"The weights are not finite after iteration {run.iters_done}, so no checkpoint is saved."
        if self.config.policy != "stop":
            raise LoopError(f"{message} Lower the learning rate, clip the gradients, or set `before_step: true`.")
        run.request_abort(message)

    def state_dict(self) -> dict[str, Any]:
        """Return the last finite loss and the counts of skipped micro-batches."""
        return {"last_good": self.last_good, "skipped": self.skipped, "in_a_row": self._consecutive_skips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.last_good, self.skipped, self._consecutive_skips = state["last_good"], state["skipped"], state["in_a_row"]

    # -- inside ----------------------------------------------------------------------------------

    def _check_loss(self, run: Run, outputs: Any, loss: Any) -> bool:
        """Return whether the loss is finite; apply the policy if it is not.

        Raises:
            LoopError: If the loss is not finite and `policy` is "raise", or after more than `max_skips` skips.
            HookError: If there is no loss.
        """
        terms = extract_loss_terms(outputs, loss)
        if not terms:
            raise HookError(
                f"hook {self.name!r}: the iteration returned no loss. Return the loss from the step, or emit "
                'after_train_iter with outputs={"loss": loss}.'
            )
        good, value = check_finite(terms)
        if good:
            self.last_good = run.current("iter"), value
        message = self._sync_message(run, "" if good else self._format_message(run, outputs, loss))
        if message:
            self._apply_policy(run, message)
        else:
            self._consecutive_skips = 0
        return not message

    def _sync_message(self, run: Run, message: str) -> str:
        """Return the error message of any rank, so that all ranks skip the micro-batch or none does."""
        ranks = run.ranks
        if ranks.world_size == 1 or not self.config.skips_batch:
            return message
        # A reduced flag first: the messages are gathered only if a rank has one.
        if not ranks.all_reduce("guards: any invalid loss", torch.tensor(int(bool(message))), "max"):
            return ""
        messages = ranks.all_gather("guards: messages about invalid losses", message)
        return next(f"Rank {rank}: {text}" for rank, text in enumerate(messages) if text)

    def _apply_policy(self, run: Run, message: str) -> None:
        self._consecutive_skips += 1
        if self.config.policy == "raise":
            raise LoopError(
                f"{message} Lower the learning rate, clip the gradients, or inspect the data of this batch."
            )
        if self.config.policy == "stop":
            self._request_stop(run, message)
        elif self._consecutive_skips > self.config.max_skips:
            raise LoopError(
                f"{message} {self._consecutive_skips} consecutive micro-batches are invalid; max_skips is "
                f"{self.config.max_skips}. Lower the learning rate, inspect the data, or increase `max_skips`."
            )
        else:
            self.skipped += 1
            run.logger.warning("%s The micro-batch is skipped.", message)

    def _request_stop(self, run: Run, message: str) -> None:
        # An optimizer step with this loss has corrupted the weights, even if they are still finite.
        if run.stepped or run.model is None or has_invalid_weights(run.model, gradients=run.accumulating):
            run.request_abort(message)
        else:
            run.request_stop(message)

    def _format_message(self, run: Run, outputs: Any, loss: Any) -> str:
        groups = [group for optimizer in run.optimizers.values() for group in optimizer.param_groups]
        rates = ", ".join(dict.fromkeys(f"{float(group['lr']):.6g}" for group in groups)) or "unknown"
        before = "none" if self.last_good is None else f"{self.last_good[1]:.6g} at iteration {self.last_good[0]}"
        return (
            f"The loss is not finite at iteration {run.current('iter')}, epoch {run.current('epoch')}: "
            f"{format_terms(outputs, loss)}. Learning rate {rates}; last good loss: {before}."
        )


def extract_loss_terms(outputs: Any, loss: Any = None) -> dict[str, Any]:
    """Return the terms of a loss by name.

    Args:
        outputs: Output of a step: a mapping, possibly nested, or the loss itself.
        loss: Loss, if it is passed separately; it replaces "loss" of `outputs`.

    Returns:
        Numbers and floating-point tensors whose name contains "loss"; if there is no such name, all scalars. The
        total `loss` is first.
    """
    numbers = _get_numbers(outputs, loss)
    terms = {name: value for name, value in numbers.items() if "loss" in name.lower()}
    terms = terms or {name: value for name, value in numbers.items() if _is_scalar(value)}
    return dict(sorted(terms.items(), key=lambda term: term[0] != "loss"))


def check_finite(terms: Mapping[str, Any]) -> tuple[bool, float]:
    """Return whether all terms, at least one, are finite, and the value of the first term."""
    # NaN and infinities survive a sum, and the two values share one copy from the device.
    sums = [_sum(value) for value in terms.values()]
    values = [sum(sums[1:], sums[0]), sums[0]]
    tensor = next((value for value in values if isinstance(value, Tensor)), None)
    if tensor is not None:
        options: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
        values = torch.stack([torch.as_tensor(value, **options) for value in values]).tolist()
    total, first = values
    return math.isfinite(total), first


def format_terms(outputs: Any, loss: Any = None) -> str:
    """Return the scalars of a step as text, such as "box is inf; cls is 0.3". Values that are not finite are first."""
    numbers = _get_numbers(outputs, loss)
    sums = {name: float(_sum(value)) for name, value in numbers.items()}
    shown = {name: value for name, value in sums.items() if _is_scalar(numbers[name]) or not math.isfinite(value)}
    order = sorted(shown.items(), key=lambda item: (math.isfinite(item[1]), item[0] == "loss"))
    return "; ".join(f"{name} is {value:.6g}" for name, value in order)


def _sum(value: Any) -> Any:
    """Return the sum of a term as a tensor without dimensions, or a number as a float."""
    if not isinstance(value, Tensor):
        return float(value)
    # In the widest type, so that finite terms do not overflow. MPS does not support float64.
    return value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64).sum()


def _get_numbers(outputs: Any, loss: Any) -> dict[str, Any]:
    """Return numbers and floating-point tensors by path; a separate loss replaces that of the outputs."""
    named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    if loss is not None:
        named = {"loss": loss, **{name: value for name, value in named.items() if name != "loss"}}
    return dict(_iter_numbers(named))


def _iter_numbers(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield numbers and floating-point tensors with their path, such as `losses.box` or `loss_cls.0`."""
    if isinstance(value, (Mapping, list, tuple)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _iter_numbers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Tensor):
        # Integer tensors are counts or labels and always finite.
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        yield name, value


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.numel() == 1


def has_invalid_weights(model: nn.Module, *, gradients: bool = False) -> bool:
    """Return whether a trainable parameter is not finite, or a buffer contains NaN.

    Infinities in buffers are valid: attention masks contain them.

    Args:
        model: Model; of sharded parameters, the local shards are checked.
        gradients: Whether to check the gradients as well.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    finite = [*trainable, *(p.grad for p in trainable if gradients and p.grad is not None)]
    has_infinite = not all(tensor.isfinite().all() for tensor in _iter_floating(finite))
    return has_infinite or any(tensor.isnan().any() for tensor in _iter_floating(model.buffers()))


def _iter_floating(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the local part of each tensor of real or complex numbers."""
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            # Collective operations of a DTensor would hang if only some ranks check their weights.
            whole: Any = tensor.detach()
            local = whole.to_local() if hasattr(whole, "to_local") else whole
            # `isfinite` is not implemented for float8 types (torch 2.13).
            yield local if local.element_size() > 1 else local.to(torch.float32)
