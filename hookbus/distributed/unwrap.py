"""Models and optimizers without their wrappers, and names of parameters and modules without the prefixes of wrappers.

A wrapper is a module around the module of the user: `torch.compile`, DistributedDataParallel, Lightning Fabric and
similar. The model itself and any module inside it may be wrapped, in any nesting.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

RESERVED_NAMES = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names of the wrapped module in wrappers that no other module uses."""

MODULE_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "PipelineEngine", "ShardedDataParallel"}
)
"""Names of the classes, and of base classes, whose wrapped module is named `module`, as other modules are as well."""

ORIGINAL_MODULE = "_original_module"
"""Second name of the wrapped module in Lightning Fabric."""


def unwrap_ddp(model: Any) -> Any:
    """Return the model without DistributedDataParallel, as hooks receive it."""
    # By name: importing torch.nn.parallel only for this check would make every run slower to start.
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the module without wrappers, whose methods and attributes are those of the user.

    Wrappers are those of `strip_wrappers`, and modules without own parameters whose only child is named `module`.

    Args:
        model: Model, wrapped or not.
    """
    while True:
        inner = strip_wrappers(model)
        own = [*inner.parameters(recurse=False), *inner.buffers(recurse=False)]
        if own or [name for name, _ in inner.named_children()] != ["module"]:
            return inner
        model = inner.module  # type: ignore[assignment]


def strip_wrappers(model: nn.Module) -> nn.Module:
    """Return the module without known wrappers, whose state dict has the names of the user.

    Known wrappers are `torch.compile`, DDP, DataParallel, FSDP, DeepSpeed, Lightning Fabric and activation
    checkpointing. A module of another class whose child is named `module` is part of the model.

    Args:
        model: Model, wrapped or not.
    """
    while (name := _get_wrapped_name(model)) is not None:
        model = model._modules[name]  # type: ignore[assignment]
    return model


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the torch optimizer inside of wrappers such as Accelerate's and Fabric's (attribute `optimizer`)."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def named_parameters(model: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model with their names in the model without wrappers.

    Args:
        model: Model, wrapped or not, whose modules may be wrapped.
        remove_duplicate: Yield a shared parameter once. Default: True.
    """
    inner = strip_wrappers(model)
    rename = _get_renaming(inner)
    for name, parameter in inner.named_parameters(remove_duplicate=remove_duplicate):
        yield rename(name), parameter


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a model, without wrappers, with their names in the model without wrappers.

    Args:
        model: Model, wrapped or not.
    """
    inner = strip_wrappers(model)
    rename = _get_renaming(inner)
    for name, module in inner.named_modules():
        if _get_wrapped_name(module) is None:
            yield rename(name), module


def get_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the state dict of a model with the names in the model without wrappers. References, not copies."""
    state: dict[str, Any] = strip_wrappers(model).state_dict()
    cleaned = clean_names(model, state)
    if cleaned is not state:
        cleaned = OrderedDict(cleaned)
        cleaned._metadata = clean_names(model, state._metadata)  # type: ignore[attr-defined]
    return cleaned


def clean_names(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Return a dict by names of parameters and buffers without the prefixes of wrappers inside a model.

    Args:
        model: Model, wrapped or not, whose modules may be wrapped.
        state: Values by name; returned unchanged if no module inside the model is wrapped.
    """
    rename = _get_renaming(strip_wrappers(model))
    return state if rename is str else {rename(name): value for name, value in state.items()}


def match_names(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Map names of a state dict, with or without prefixes of wrappers, to the names in the state dict of a model.

    Args:
        model: Model without wrappers, whose modules may be wrapped.
        names: Names, such as those of a file.

    Returns:
        The name in `model.state_dict()` by given name. A name without a match is omitted.
    """
    rename, own = _get_renaming(model), list(model.state_dict())
    return _match_best({rename(name): name for name in own} | {name: name for name in own}, list(names))


def remove_wrapper_names(name: str) -> str:
    """Return a name without the names of wrapped modules at any level: `_orig_mod`, `module`, `_forward_module`, ..."""
    return ".".join(part for part in _remove_reserved(name).split(".") if part != "module")


# -- private ---------------------------------------------------------------------------------


def _get_wrapped_name(module: nn.Module) -> str | None:
    """Return the name of the module inside a wrapper; None if the module is not a wrapper."""
    children = module._modules
    for name in RESERVED_NAMES:
        if name in children:
            return name
    if "module" in children and not MODULE_WRAPPERS.isdisjoint(cls.__name__ for cls in type(module).__mro__):
        return "module"
    return None


def _get_renaming(model: nn.Module) -> Callable[[str], str]:
    """Return a function that removes the prefixes of wrappers inside a model from a name; `str` if there are none."""
    if all(_get_wrapped_name(module) is None for module in model.modules()):
        return str
    return lambda name: _remove_prefixes(model, name)


def _remove_prefixes(model: nn.Module, name: str) -> str:
    kept: list[str] = []
    module: nn.Module | None = model
    for part in name.split("."):
        wrapped = None if module is None else _get_wrapped_name(module)
        if module is None or wrapped is None:
            kept.append(part)
        elif part not in (wrapped, ORIGINAL_MODULE):
            # The wrapper itself omits the name of the wrapped module.
            module = strip_wrappers(module)
            kept.append(part)
        module = None if module is None else module._modules.get(part)
    return ".".join(kept)


def _remove_reserved(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in (*RESERVED_NAMES, ORIGINAL_MODULE))


def _remove_leading(name: str) -> str:
    """Return a name without the prefix of a wrapper around the whole model."""
    return _remove_reserved(name).removeprefix("module.")


def _match_best(targets: Mapping[str, str], names: list[str]) -> dict[str, str]:
    """Return the target by name according to the strictest rule that matches most names."""
    without_prefixes = {remove_wrapper_names(target): target for target in targets.values()}
    # Strict rules first, of which `max` returns the first best: a module of the user may be named `module`.
    rules = [(rule, targets) for rule in (str, _remove_reserved, _remove_leading)]
    matches = [_match(names, rule, known) for rule, known in (*rules, (remove_wrapper_names, without_prefixes))]
    return max(matches, key=len)


def _match(names: Iterable[str], rule: Callable[[str], str], targets: Mapping[str, str]) -> dict[str, str]:
    """Return the targets of names; names with the same target are omitted."""
    matched = {name: target for name in names if (target := targets.get(rule(name))) is not None}
    counts = Counter(matched.values())
    return {name: target for name, target in matched.items() if counts[target] == 1}
