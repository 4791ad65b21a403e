"""Check that checkpoints contain everything that is trained.

Every parameter of an optimizer of the run is in a model, in the loss, or in another part of the checkpoint, and every
optimizer that has stepped is an optimizer of the run, or a part of the checkpoint contains its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from hookbus._run.objects import iter_parameters
from hookbus._run.step_hooks import SteppedOptimizers
from hookbus._utils.arguments import format_label
from hookbus._utils.values import iter_leaves
from hookbus.distributed.unwrap import unwrap_optimizer
from hookbus.errors import CheckpointError

MAX_SHOWN = 5
"""Number of parameters that a message lists."""

COMPONENTS = (
    *("state_dict", "training_weights", "ema_state_dict", "averages", "optimizer", "scheduler", "scaler", "loss"),
    *("grads", "rng", "loop", "ranks"),
)
"""Keys of a checkpoint with the objects that the run knows. All others may contain further parameters."""


class Completeness:
    """Check the checkpoints of one run, and the optimizers that step.

    Attributes:
        is_due: Whether the end of the iteration has to be checked.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._steps: SteppedOptimizers | None = None
        self.is_due = False
        self._checked: object = None

    def start(self) -> None:
        """Start to record the optimizers that step. The first iteration is checked."""
        run, entries = self._run, self._run.state.values()
        known = [*run.optimizers.values(), *(entry for entry in entries if hasattr(entry, "param_groups"))]
        # Optimizers that a validation or a trial creates, such as that of a linear probe, are not part of the training.
        self._steps = SteppedOptimizers(known, lambda: run.validating or run.trial is not None, self._request_check)
        self._steps.start()
        self._request_check()

    @property
    def is_started(self) -> bool:
        """Whether the optimizers that step are recorded."""
        return self._steps is not None

    def stop(self) -> None:
        """Stop to record. Idempotent."""
        if self._steps is not None:
            self._steps.stop()

    def take_due(self) -> bool:
        """Return and reset `is_due`, which is set in the first iteration and in that of a new optimizer."""
        is_due, self.is_due = self.is_due, False
        return is_due

    def check_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Check a checkpoint."""
        self.check(lambda: [part for key, part in checkpoint.items() if key not in COMPONENTS])

    def check(self, collect_others: Callable[[], list[Any]]) -> None:
        """Check the optimizers, if they or the number of their parameters have changed since the last check.

        Args:
            collect_others: Function that returns the parts of a checkpoint that may contain further parameters.

        Raises:
            CheckpointError: If a parameter or an optimizer is missing. The message names all of them.
        """
        unknown = [] if self._steps is None else self._steps.get_unknown()
        counts = {name: len([*iter_parameters(optimizer)]) for name, optimizer in self._run.optimizers.items()}
        current = (set(map(id, unknown)), counts)
        if current == self._checked:
            return
        others = cache(collect_others)
        problems = [*self._find_missing_parameters(others), *self._find_missing_optimizers(unknown, others)]
        if problems:
            raise CheckpointError("A checkpoint would be incomplete. " + "\n".join(problems))
        self._checked = current

    def _request_check(self) -> None:
        self.is_due = self._run.pending = True

    def _find_missing_parameters(self, others: Callable[[], list[Any]]) -> Iterator[str]:
        """Yield an error for each optimizer whose parameters are not in the checkpoint."""
        modules = [self._run.model, self._run.loss, *self._run.state.values()]
        known = {
            id(parameter) for module in modules if hasattr(module, "parameters") for parameter in module.parameters()
        }
        for name, optimizer in self._run.optimizers.items():
            label = format_label("optimizer", name)
            missing = [entry for entry in _iter_named_parameters(optimizer) if id(entry[1]) not in known]
            # The other parts are collected only if a parameter is in no model.
            lost = [n for n, p in missing if not any(_is_equal(leaf, p) for _, leaf in iter_leaves(others()))]
            if lost:
                yield (
                    f"{label}: {len(lost)} of its parameters are in no model of the run: {_format(lost)}. Pass all "
                    'models to the run, such as model={"G": ..., "D": ...}, a loss function with parameters as `loss`, '
                    "and other tensors as `state`."
                )

    def _find_missing_optimizers(self, unknown: Iterable[Any], others: Callable[[], list[Any]]) -> Iterator[str]:
        """Yield an error for each optimizer that has stepped and whose state is not in the checkpoint."""
        known = [unwrap_optimizer(optimizer) for optimizer in self._run.optimizers.values()]
        owned = {id(inner) for optimizer in self._run.optimizers.values() for inner in _iter_saved_parts(optimizer)}
        for optimizer in unknown:
            is_saved = id(optimizer) in owned or any(_shares_state(optimizer, other) for other in known)
            if not is_saved and not _contains_optimizer(others(), optimizer):
                names = self._describe_parameters(optimizer)
                yield (
                    f"{type(optimizer).__name__} has stepped, but is no optimizer of the run. Its parameters: {names}. "
                    'Pass all optimizers and their models to the run, such as optimizer={"G": ..., "D": ...}. Pass an '
                    "optimizer of other tensors in `state`; delete a temporary one before `after_train_iter`."
                )

    def _describe_parameters(self, optimizer: Any) -> str:
        """Return the names of the parameters of an optimizer that the run does not know."""
        model = self._run.model
        names = {} if model is None else {id(parameter): name for name, parameter in model.named_parameters()}
        return _format([names.get(id(parameter), text) for text, parameter in _iter_named_parameters(optimizer)])


def _iter_named_parameters(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an optimizer with a description each: the name, or position and shape."""
    for i, group in enumerate(getattr(unwrap_optimizer(optimizer), "param_groups", ())):
        names = group.get("param_names", ())
        for j, parameter in enumerate(group["params"]):
            if parameter.requires_grad:
                text = f"parameter {j} of group {i} with shape {tuple(parameter.shape)}"
                yield names[j] if j < len(names) else text, parameter


def _format(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_SHOWN])
    return shown if len(names) <= MAX_SHOWN else f"{shown} and {len(names) - MAX_SHOWN} more"


def _iter_saved_parts(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizers inside of an optimizer that saves them, as it defines its own `state_dict`."""
    from torch.optim import Optimizer

    if type(optimizer).state_dict is Optimizer.state_dict:
        return
    for value in vars(optimizer).values():
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else [value]
        yield from (item for item in items if isinstance(item, Optimizer))


def _shares_state(optimizer: Any, known: Any) -> bool:
    """Return whether an optimizer has no other state than a known one, whose parts it uses."""
    has_same_groups = optimizer.param_groups is getattr(known, "param_groups", None)
    return has_same_groups and (not optimizer.state or optimizer.state is getattr(known, "state", None))


def _is_equal(leaf: Any, tensor: Any) -> bool:
    """Return whether a part of a checkpoint is the value of a tensor."""
    if isinstance(leaf, float):
        return bool(tensor.numel() == 1 and tensor.item() == leaf)
    # Hooks store copies, possibly on another device.
    return hasattr(leaf, "shape") and leaf.shape == tensor.shape and bool((leaf.to(tensor.device) == tensor).all())


def _contains_optimizer(parts: list[Any], optimizer: Any) -> bool:
    """Return whether parts of a checkpoint contain the state dict of an optimizer."""
    groups = [(len(group["params"]), group.get("lr")) for group in optimizer.param_groups]
    return any(
        [(len(group["params"]), group.get("lr")) for group in part["param_groups"]] == groups
        for part in _iter_dicts(parts)
        if "param_groups" in part and "state" in part
    )


def _iter_dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings in a nested value."""
    if isinstance(value, Mapping):
        yield value
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_dicts(item)
