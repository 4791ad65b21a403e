"""Optimizers, schedulers, scaler, loss and gradients of a run in a checkpoint. Named objects have states by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from hookbus._training.lr_scheduler import load_scheduler
from hookbus._utils.arguments import format_label, get_by_name
from hookbus._utils.schema import any_value, join, mapping_of, record
from hookbus.checkpoint.component_checks import (
    check_grads,
    check_optimizer,
    check_optimizer_structure,
    check_template,
)
from hookbus.checkpoint.contents import wrap_invalid_data
from hookbus.checkpoint.hook_states import STRUCTURE_FIX
from hookbus.checkpoint.plain_data import to_plain_data
from hookbus.checkpoint.weights import check_compatible
from hookbus.distributed.sharding import TRAINING_WEIGHTS
from hookbus.distributed.unwrap import match_names, named_parameters, strip_wrappers, unwrap_optimizer
from hookbus.errors import CheckpointError

if TYPE_CHECKING:
    from hookbus._run.run import Run

COMPONENTS = ("optimizer", "scheduler", "scaler", "loss")
"""Keys of a checkpoint, and attributes of a run."""

LOSS_PREFIX = ".loss."
"""Prefix of the parameters of the loss function in `grads`. No parameter name of a model begins with a dot."""


def collect_components(run: Run) -> dict[str, Any]:
    """Return the state of each component that the run has, and gradients in the middle of an accumulation.

    The states of named objects are by name. Gradients are by parameter name.

    Raises:
        CheckpointError: If a state contains a value that is neither a built-in Python type nor a tensor.
    """
    states: dict[str, Any] = {}
    for key, part in _iter_components(run):
        named = {name: _get_state(key, name, inner) for name, inner in get_by_name(part).items()}
        states[key] = named if isinstance(part, Mapping) else named[""]
    for name, weights in run.weights.modes.collect_training_weights().items():
        _get_optimizer_state(states, name)[TRAINING_WEIGHTS] = weights
    return {**states, **collect_grads(run)}


def collect_grads(run: Run) -> dict[str, Any]:
    """Return the gradients under the key `grads` in the middle of an accumulation, otherwise {}."""
    if not run.accumulating or run.model is None:
        return {}
    grads = {name: parameter.grad for name, parameter in _get_parameters(run).items()}
    return {"grads": {name: grad for name, grad in grads.items() if grad is not None}}


def check_components(run: Run, checkpoint: Mapping[str, Any]) -> None:
    """Check the states of the components and the gradients, before anything is loaded.

    Raises:
        CheckpointError: If a state does not match.
    """
    for key, part in _iter_components(run):
        saved = checkpoint.get(key)
        if saved is None:
            continue
        _check_names(key, part, saved)
        parts, states = get_by_name(part), _get_states(part, saved)
        for name in parts.keys() & states.keys():
            _check_component(key, name, parts[name], states[name])
    check_accumulated_grads(run, checkpoint)


def check_accumulated_grads(run: Run, checkpoint: Mapping[str, Any]) -> None:
    """Check the gradients of an incomplete accumulation.

    Raises:
        CheckpointError: If a gradient does not match its parameter.
    """
    with wrap_invalid_data():
        check_grads(_get_parameters(run), checkpoint.get("grads", {}))


def _check_component(key: str, name: str, part: Any, saved: Any) -> None:
    where, optimizer = join(key, name) if name else key, unwrap_optimizer(part)
    with wrap_invalid_data():
        mapping_of(any_value)(saved, where)
        if key == "loss":
            check_compatible(part, saved)
        elif key != "optimizer" and type(part).__module__.startswith("torch."):
            own = part.state_dict()
            record(dict.fromkeys(own.keys() & {"last_epoch"}, any_value))(saved, where)
            check_template(own, saved, where)
        elif getattr(type(optimizer), "state_dict", None) is Optimizer.state_dict:
            check_optimizer_structure(saved, where)
            label = format_label(key, name)
            _check_type(label, optimizer, saved)
            _check_groups(label, optimizer, saved)
            check_optimizer(optimizer, saved, where)


def load_components(run: Run, checkpoint: Mapping[str, Any]) -> None:
    """Load the gradients and the state of each component; log a warning if only the run or the checkpoint has one.

    Raises:
        CheckpointError: If a state does not match.
    """
    parts = dict(_iter_components(run))
    for key in COMPONENTS:
        part, saved = parts.get(key), checkpoint.get(key)
        named, states = get_by_name(part), _get_states(part, saved)
        for name in dict.fromkeys([*named, *states]):
            _load(run, key, format_label(key, name), named.get(name), states.get(name))
    for name in run.optimizers:
        weights = _get_optimizer_state(checkpoint, name).get(TRAINING_WEIGHTS, {})
        run.weights.modes.load_training_weights(name, weights)
    load_grads(run, checkpoint.get("grads", {}))


def load_grads(run: Run, grads: Mapping[str, Any]) -> None:
    """Restore the gradients of an incomplete accumulation; the gradient of any other parameter is set to None."""
    if run.model is None:
        return
    model: nn.Module = strip_wrappers(run.model)
    renaming = match_names(model, [name for name in grads if not name.startswith(LOSS_PREFIX)])
    saved = {renaming.get(name, name): grad for name, grad in grads.items()}
    for name, parameter in [*model.named_parameters(), *_get_loss_parameters(run).items()]:
        grad = saved.get(name)
        parameter.grad = None if grad is None else grad.to(parameter.device, parameter.dtype)


def _get_parameters(run: Run) -> dict[str, Any]:
    """Return the parameters of the model and of the loss function by name in `grads`."""
    return (dict(named_parameters(run.model)) if run.model is not None else {}) | _get_loss_parameters(run)


def _get_loss_parameters(run: Run) -> dict[str, Any]:
    """Return the parameters of the loss function by name in `grads`."""
    if run.loss is None:
        return {}
    return {LOSS_PREFIX + name: parameter for name, parameter in run.loss.named_parameters()}


def _iter_components(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield the components of a run with their keys."""
    for key in COMPONENTS:
        part = getattr(run, key)
        # A loss function without parameters and buffers has no state.
        if part is not None and (key != "loss" or part.state_dict()):
            yield key, part


def _get_state(key: str, name: str, part: Any) -> Any:
    return to_plain_data(dict(part.state_dict()), f"checkpoint[{key!r}]{f'[{name!r}]' if name else ''}")


def _get_states(part: Any, saved: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the saved states of a component by name; that of an object without a name has the name ""."""
    if saved is None:
        return {}
    return saved if isinstance(part, Mapping) else {"": saved}


def _get_optimizer_state(checkpoint: Mapping[str, Any], name: str) -> Any:
    """Return the state of an optimizer in a checkpoint, empty without one."""
    state = checkpoint.get("optimizer", {})
    return state.get(name, {}) if name else state


def _check_names(key: str, part: Any, saved: Mapping[str, Any]) -> None:
    """Raise if a run has named objects and the checkpoint has not, or vice versa."""
    is_named = bool(saved) and all(isinstance(state, Mapping) for state in saved.values())
    if isinstance(part, Mapping) == is_named or not saved:
        return
    own = f"{key}s with the names {', '.join(part)}" if isinstance(part, Mapping) else f"one {key} without a name"
    other = f"the names {', '.join(saved)}" if is_named else "no names"
    raise CheckpointError(
        f"The {key} state in the checkpoint does not match the run: the run has {own}, the checkpoint has {other}. "
        f"Pass the {key}s as in the run that wrote the checkpoint."
    )


def _load(run: Run, key: str, label: str, part: Any, saved: Mapping[str, Any] | None) -> None:
    if part is None and saved is not None:
        run.logger.warning("The checkpoint contains a %s state, but the run has no %s; it is ignored.", label, label)
    elif part is not None and saved is None:
        run.logger.warning("No %s state in the checkpoint; it is re-initialized.", label)
    if part is None or saved is None:
        return
    try:
        if key == "scheduler":
            for message in load_scheduler(part, saved):
                run.logger.warning("%s: %s", label, message)
        else:
            part.load_state_dict(saved)
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"The {label} state in the checkpoint does not match the run: {error}") from error


def _check_type(label: str, part: Any, saved: Mapping[str, Any]) -> None:
    """Raise if a saved optimizer state lacks options of the optimizer, as the state of another optimizer class does."""
    # `Optimizer.load_state_dict` accepts the state of another class, and the next `step` raises a KeyError.
    # Without those of later torch versions, which `load_state_dict` adds to the defaults but not to the groups.
    required = set(getattr(part, "defaults", ())).intersection(*getattr(part, "param_groups", ()))
    for group in saved.get("param_groups", ()) if required else ():
        missing = sorted(required - set(group))
        if missing:
            raise CheckpointError(
                f"The {label} state in the checkpoint is not of type {type(part).__name__}: it has no "
                f"{', '.join(missing)}. Use the {label} of the checkpoint, or set `load_from` to start from its "
                "weights alone."
            )


def _check_groups(label: str, part: Optimizer, saved: Mapping[str, Any]) -> None:
    """Raise if the optimizer has other parameter groups than in the run that wrote the checkpoint."""
    sizes, own = ([len(group["params"]) for group in groups] for groups in (saved["param_groups"], part.param_groups))
    if sizes == own:
        return
    if len(sizes) > len(own) > 0:
        reason = f"it contains {len(sizes)} parameter groups, and the {label} has {len(own)}. {STRUCTURE_FIX}"
    else:
        reason = f"its parameter groups contain {sizes} parameters, and those of the {label} {own}."
    raise CheckpointError(f"The {label} state in the checkpoint does not match the run: {reason}")
