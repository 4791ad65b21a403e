"""State of the last iteration boundary, for a checkpoint that a hook requests after a failure.

An unfinished iteration has changed RNG states, buffers, counts and the position in the data, but not the weights: these
change in an optimizer step only, after which no checkpoint is possible before the next boundary. At each boundary the
small parts are therefore recorded, without a device synchronization, if a hook may request a save in `on_exception`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from hookbus._run.request_sync import may_request
from hookbus._utils.values import TensorVersion, get_tensor_version
from hookbus.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from hookbus._run.run import Run

Slot = tuple[dict[str, Any], str]
"""The buffers of a module by name, and the name of one of them."""


class BoundaryState:
    """Recorded state of the last iteration boundary of a run.

    Attributes:
        accepts_saves: Whether saves are accepted although the run has failed: during `on_exception`, unless the weights
            are corrupted.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.accepts_saves = False
        self._is_rewound = False
        self._recorded: dict[str, Any] = {}
        self._steps = 0
        self._modules: list[Any] = []
        self._versions: list[tuple[Tensor, TensorVersion]] = []
        self._slots: list[Slot] = []
        self._buffers: list[Tensor] = []
        self._resets: list[Callable[[], object]] = []
        self._evaluated: str | None = None

    @property
    def is_needed(self) -> bool:
        """Whether a hook may request a save in `on_exception`."""
        run = self._run
        if run.mode != "train" or run.ranks.world_size > 1:
            return False
        return any(may_request(listener.plugin) for listener in run.bus.table.listeners("on_exception", run))

    # -- at a boundary -----------------------------------------------------------------------------

    def record(self) -> None:
        """Record the state at a boundary."""
        run = self._run
        if run.get("checkpoint_saver") is None:
            return
        from hookbus.checkpoint.hook_states import collect_loop_state
        from hookbus.data.rng import get_rng_state

        # Listed once per epoch, at whose start hooks may add modules.
        if not self._modules or run.iters_done == run.clock.epoch_first_iter:
            modules = [module for module in (run.model, run.loss) if module is not None]
            self._modules = [part for module in modules for part in module.modules()]
        self._steps, self._evaluated = run.steps_done, None
        self._recorded = {"loop": run.state_dict(), "rng": get_rng_state()}
        self._recorded |= copy.deepcopy(collect_loop_state(run.state))
        self._resets = [*record_settings(run)]
        self._resets += [partial(s.load_state_dict, dict(s.state_dict())) for s in run.schedulers.values()]
        self._versions = [(tensor, get_tensor_version(tensor)) for tensor in self._iter_tensors()]
        self._record_buffers()

    def record_again(self) -> None:
        """Record the state after requests were processed at a boundary, if it is recorded at all."""
        if self._recorded:
            self.record()

    def record_hooks(self) -> None:
        """Record the states of the hooks before the listeners of a validation or of the end of an epoch change them."""
        if not self._recorded or "hooks" in self._recorded:
            return
        from hookbus.checkpoint.hook_states import collect_hook_states

        self._recorded["hooks"] = collect_hook_states(self._run)
        # A validation may exchange the weights, which changes them in place.
        self._evaluated = self._find_change()

    @contextmanager
    def unchanged_versions(self) -> Iterator[None]:
        """Context manager that restores the weights: their versions change, but not their values."""
        was_unchanged = bool(self._versions) and not self._find_change()
        try:
            yield
        finally:
            if was_unchanged:
                self._versions = [(tensor, get_tensor_version(tensor)) for tensor, _ in self._versions]

    # -- after a failure ---------------------------------------------------------------------------

    def rewind(self) -> None:
        """Restore what has changed since the boundary, for a checkpoint of the boundary.

        Raises:
            CheckpointError: If the weights may have changed since, or nothing was recorded.
        """
        run = self._run
        reason = self._find_reason()
        if reason:
            raise CheckpointError(
                f"The checkpoint that was requested after the failure was not saved, because {reason}. Resume from the "
                "latest checkpoint."
            )
        run.validations.leave()
        run.clock.stop()
        run.clock.load_state_dict(self._recorded["loop"]["clock"])
        run.accumulated = self._recorded["loop"]["accumulated"]
        for reset in self._resets:
            reset()
        for (values, name), copied in zip(self._slots, self._buffers, strict=True):
            values[name] = copied
        self._is_rewound = True

    def apply(self, checkpoint: dict[str, Any], saver: str) -> None:
        """Replace the parts of a checkpoint that were recorded at the boundary; no effect before `rewind`.

        Args:
            checkpoint: Checkpoint of the failed run.
            saver: Name of the hook that saves, whose state contains the names of its files.
        """
        if self._is_rewound:
            hooks = checkpoint["hooks"]
            checkpoint |= self._recorded
            checkpoint["hooks"] = {**hooks, **self._recorded.get("hooks", {}), saver: hooks[saver]}

    def _find_reason(self) -> str:
        """Return why the state of the boundary cannot be saved, "" if it can."""
        run = self._run
        if run.ranks.world_size > 1:
            return "the other ranks cannot take part in it"
        if not self._recorded:
            return "the training had not begun"
        iteration = self._recorded["loop"]["clock"]["iters_done"]
        if run.steps_done != self._steps:
            return f"an optimizer has stepped since iteration {iteration}"
        # A loop that updates the weights through `Tensor.data` does not change their versions.
        if not run.optimizers and any(module._parameters for module in self._modules):
            return f"the run has no optimizer, so that its weights may have changed since iteration {iteration}"
        return self._find_change() if self._evaluated is None else self._evaluated

    def _find_change(self) -> str:
        """Return which tensors have changed since the boundary, "" if none has."""
        if all(get_tensor_version(tensor) == version for tensor, version in self._versions):
            return ""
        iteration = self._recorded["loop"]["clock"]["iters_done"]
        return f"weights, accumulated gradients or the gradient scaler have changed since iteration {iteration}"

    # -- parts -------------------------------------------------------------------------------------

    def _iter_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that must not change: weights, gradients of an accumulation, and those of a scaler."""
        run = self._run
        groups = chain.from_iterable(optimizer.param_groups for optimizer in run.optimizers.values())
        parameters = [p for group in groups for p in group["params"]]
        parameters += [p for module in self._modules for p in module._parameters.values() if p is not None]
        yield from parameters
        if run.accumulating:
            yield from (p.grad for p in parameters if p.grad is not None)
        # A private attribute, because the public state of a scaler is read with a device synchronization.
        if (scale := getattr(run.scaler, "_scale", None)) is not None:
            yield scale

    def _record_buffers(self) -> None:
        """Copy the buffers of the modules, into the same memory at each boundary."""
        import torch

        dicts = [module._buffers for module in self._modules]
        self._slots = [(values, name) for values in dicts for name, value in values.items() if value is not None]
        current = [values[name].detach() for values, name in self._slots]
        if [_get_layout(tensor) for tensor in current] != [_get_layout(tensor) for tensor in self._buffers]:
            self._buffers = [tensor.clone() for tensor in current]
        elif current:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, current)


def record_settings(run: Run) -> Iterator[Callable[[], object]]:
    """Yield functions that restore the settings of the parameter groups of a run, which schedulers set."""
    for optimizer in run.optimizers.values():
        for group in optimizer.param_groups:
            settings = {k: copy.copy(v) if k != "lr" else _clone(v) for k, v in group.items() if k != "params"}
            yield partial(group.update, settings)


def _clone(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _get_layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, type(tensor)
