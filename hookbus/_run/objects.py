"""Checks of the arguments of a run: its mode, and models, optimizers and learning-rate schedulers by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from hookbus._utils.arguments import check_has_method, check_is_instance, get_by_name, is_function_pair
from hookbus.distributed.unwrap import unwrap_ddp, unwrap_optimizer
from hookbus.errors import suggest_names
from hookbus.lifecycle import Mode

if TYPE_CHECKING:
    from torch import nn


def freeze_names(value: Any) -> Any:
    """Return a read-only copy of a mapping of names; any other value is returned unchanged."""
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


def combine_models(model: Any) -> nn.Module | None:
    """Return a model without DistributedDataParallel; named models as an `nn.ModuleDict`."""
    return build_module_dict(model) if isinstance(model, Mapping) else unwrap_ddp(model)


def build_module_dict(models: Mapping[str, Any]) -> nn.ModuleDict:
    """Return named models without DistributedDataParallel."""
    from torch import nn  # importing this module must not import torch

    return nn.ModuleDict({name: unwrap_ddp(module) for name, module in models.items()})


def find_object_problems(model: Any, optimizer: Any, scheduler: Any) -> Iterator[str]:
    """Yield an error message for each invalid object of a training.

    Args:
        model, optimizer, scheduler: An object, a mapping of names to objects, or None.
    """
    from torch import nn

    yield from _find_name_problems("model", model)
    for name, module in get_by_name(model).items():
        if not isinstance(module, nn.Module):
            label = _label("model", name)
            yield f"{label}: expected a torch.nn.Module, got {_describe(module)}.{_suggest_names('model', module)}"
    for argument, value in {"optimizer": optimizer, "scheduler": scheduler}.items():
        yield from _find_name_problems(argument, value)
        for name, part in get_by_name(value).items():
            yield _check_step(argument, name, part)
    yield from _find_foreign_schedulers(scheduler, optimizer)


def check_loss(loss: Any) -> str:
    """Check that a loss function is a module, or None."""
    from torch import nn

    if loss is None or isinstance(loss, nn.Module):
        return ""
    return (
        f"loss: expected a torch.nn.Module, got {_describe(loss)}. Omit `loss` for a function without parameters, and "
        "pass several modules as one nn.ModuleDict."
    )


def find_state_problems(state: Any) -> Iterator[str]:
    """Yield an error message for each invalid entry of the state of a loop."""
    if state is None:
        return
    if not isinstance(state, Mapping):
        yield f'state: expected a mapping, got {_describe(state)}. Pass state={{"name": (get, set)}}.'
        return
    for name, entry in state.items():
        if not isinstance(name, str) or not name:
            yield f"state: names must be strings that are not empty, got {name!r}. Rename the entry."
        elif not is_function_pair(entry) and not _has_state(entry):
            yield (
                f"state[{name!r}]: expected a pair of functions (get, set) or an object with state_dict() and "
                f"load_state_dict(), got {_describe(entry)}. Pass, for example, (lambda: hidden, set_hidden)."
            )


def _has_state(entry: Any) -> bool:
    methods = (getattr(entry, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(entry, type) and all(map(callable, methods))


def _label(argument: str, name: str) -> str:
    return f"{argument}[{name!r}]" if name else argument


def _find_name_problems(argument: str, value: Any) -> Iterator[str]:
    """Yield the errors of a mapping of names."""
    if not isinstance(value, Mapping):
        return
    if not value:
        yield f"{argument}: expected at least one object, got an empty mapping. Pass None for no {argument}."
    names = [name for name in value if not _is_valid_name(name)]
    if names:
        got = ", ".join(map(repr, names))
        yield f"{argument}: names must be identifiers and no attributes of nn.ModuleDict, got {got}. Rename them."
    first: dict[int, Any] = {}
    for name, part in value.items():
        other = first.setdefault(id(part), name)
        if other != name:
            yield f"{argument}: {other!r} and {name!r} are the same {type(part).__name__}. Pass each object once."


def _is_valid_name(name: object) -> bool:
    if not isinstance(name, str) or not name.isidentifier() or name == "module":
        return False  # `module` is the name that wrappers such as DistributedDataParallel use
    from torch import nn

    return not hasattr(nn.ModuleDict(), name)


def _check_step(argument: str, name: str, part: Any) -> str:
    label = _label(argument, name)
    if isinstance(part, (list, tuple)):
        return f"{label}: should have a method step(), got {_describe(part)}.{_suggest_names(argument, part)}"
    return check_is_instance(label, part) or check_has_method(label, part, "step")


def _suggest_names(argument: str, value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return ""
    return f' Pass a mapping of names, such as {argument}={{"G": ..., "D": ...}}.'


def _describe(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, (list, tuple)):
        return type(value).__name__
    return f"a {type(value).__name__} of {', '.join(type(item).__name__ for item in value) or 'nothing'}"


def _find_foreign_schedulers(scheduler: Any, optimizer: Any) -> Iterator[str]:
    """Yield an error for each scheduler of an optimizer that the run does not have."""
    known = {id(parameter) for part in get_by_name(optimizer).values() for parameter in iter_parameters(part)}
    for name, part in get_by_name(scheduler).items():
        own = {id(parameter) for parameter in iter_parameters(getattr(part, "optimizer", None))}
        # Compared by parameter: an optimizer may wrap the optimizer of the scheduler.
        if own and known and not own & known:
            yield (
                f"{_label('scheduler', name)}: {type(part).__name__} schedules an optimizer that the run does not "
                'have. Pass that optimizer as well, by name: optimizer={"G": ..., "D": ...}.'
            )


def find_untrained(module: nn.Module | None, optimizers: Iterable[Any]) -> list[str]:
    """Return the names of the parameters that require a gradient and are in no optimizer; none without optimizers."""
    trained = [{id(parameter) for parameter in iter_parameters(optimizer)} for optimizer in optimizers]
    if module is None or not trained:
        return []
    known = set().union(*trained)
    return [name for name, part in module.named_parameters() if part.requires_grad and id(part) not in known]


def iter_parameters(optimizer: Any) -> Iterable[Any]:
    """Return the parameters of an optimizer."""
    groups = getattr(unwrap_optimizer(optimizer), "param_groups", None) or ()
    return (parameter for group in groups for parameter in group["params"])


def find_mode_problems(mode: object, **training: Any) -> Iterator[str]:
    """Yield a message for an unknown mode, and for each argument that has an effect on training only.

    Args:
        mode: Argument `mode`.
        training: Such arguments by name.
    """
    if mode not in get_args(Mode):
        yield (
            f"mode: expected 'train', 'val', 'test' or 'predict', got {mode!r}."
            f"{suggest_names(str(mode), get_args(Mode))}"
        )
    elif mode != "train":
        for name, value in training.items():
            # A loader is not compared, since its class may define the comparison.
            if value is not None and value is not False:
                shown = repr(value) if isinstance(value, int) else type(value).__name__
                yield f"{name}: has no effect in a run of mode {mode!r}, got {shown}. Remove it."


def describe_mode(mode: Mode) -> str:
    """Return the reason for which a run that only evaluates refuses an operation of training, and what to do."""
    return (
        f"the run only evaluates, got mode {mode!r}. Iterate over the loader itself and emit before_{mode} and "
        f"after_{mode}, or open the run with mode='train'."
    )
