"""Weights of a checkpoint or state dict: names and versions, loading into a model, and comparison with a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookbus._utils.schema import InvalidDataError, join, shorten
from hookbus.distributed.unwrap import clean_names, match_names, remove_wrapper_names, strip_wrappers
from hookbus.errors import CheckpointError

EXTRA_STATE = "_extra_state"
"""Last part of the key of the extra state of a module."""

OPTIONAL = "num_batches_tracked"
"""Last part of a key that torch accepts to be missing: old versions of BatchNorm did not count batches."""


def get_structure(model: nn.Module) -> dict[str, list[int] | None]:
    """Return the shapes of the parameters and buffers of a model by name; None if one is not initialized."""
    inner = strip_wrappers(model)
    tensors = {**dict(inner.named_parameters(remove_duplicate=False)), **dict(inner.named_buffers())}
    return {
        name: None if is_lazy(tensor) else list(tensor.shape) for name, tensor in clean_names(model, tensors).items()
    }


def add_versions(weights: dict[str, Any], versions: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return weights with the versions of modules, which torch stores in an attribute of a state dict.

    Modules that convert files of older versions when they are loaded read them.
    """
    if versions is None:
        return weights
    state = OrderedDict(weights)
    state._metadata = versions  # type: ignore[attr-defined]
    return state


def get_versions(weights: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the versions of modules that a state dict contains, None without any."""
    return getattr(weights, "_metadata", None)


def load_into(
    model: nn.Module,
    weights: Mapping[str, Any],
    versions: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
) -> None:
    """Load weights into a model. Names with and without prefixes of wrappers match.

    Args:
        model: Model, wrapped or not.
        weights: State dict.
        versions: Versions of the modules in the state dict. Default: None, for unknown versions.
        strict: Require all keys to match. Default: True.

    Raises:
        CheckpointError: If keys or shapes do not match; the message lists them.
    """
    if strict:
        # Before anything is loaded: torch reports a mismatch after it has copied everything else.
        check_compatible(model, weights)
    try:
        inner, renamed = strip_wrappers(model), rename_weights(model, weights)
        inner.load_state_dict(add_versions(renamed, _rename_versions(inner, versions)), strict=strict)
    except RuntimeError as error:
        raise CheckpointError(f"The weights do not match the model: {' '.join(str(error).split())}") from None


def rename_weights(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights with the names in the state dict of a model. Names without a match are unchanged."""
    renaming = match_names(strip_wrappers(model), weights)
    return {renaming.get(name, name): value for name, value in weights.items()}


def matching_weights(model: nn.Module, weights: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Select the weights that match a model in name and shape.

    Weights of a module that converts them when they are loaded match in any case.

    Returns:
        The matching weights, the names of the remaining weights, and the names of the model's remaining weights.

    Raises:
        CheckpointError: If no weight matches.
    """
    own, converting = strip_wrappers(model).state_dict(), _get_converting_modules(model)
    renamed = rename_weights(model, weights)
    matching = {
        name: value
        for name, value in renamed.items()
        if _fits(name, value, own.get(name)) or name.startswith(converting)
    }
    if own and not matching:
        in_file, in_model = (", ".join(list(state)[:3]) for state in (weights, own))
        raise CheckpointError(
            f"No weight matches the model: the file contains {in_file} ..., the model contains {in_model} ..."
        )
    return matching, sorted(set(renamed) - set(matching)), sorted(set(own) - set(matching))


def check_compatible(model: nn.Module, weights: Mapping[str, Any], *, strict: bool = True) -> None:
    """Raise if weights do not match a model. Compares names and shapes; runs no code that loads state.

    Keys of a module that converts its state when it is loaded, by a hook or an override, are not compared.

    Args:
        model: Model to check.
        weights: State dict; its tensors may be on the meta device.
        strict: Require all weights to match; otherwise one match is sufficient. Default: True.

    Raises:
        CheckpointError: If the weights do not match.
    """
    if not strict:
        matching_weights(model, weights)
        return
    own, converting = strip_wrappers(model).state_dict(), _get_converting_modules(model)
    renamed = rename_weights(model, weights)
    renamed = {name: value for name, value in renamed.items() if not name.startswith(converting)}
    own = {name: value for name, value in own.items() if not name.startswith(converting)}
    problems = [
        _format_names("Missing key(s)", [name for name in own if name not in renamed and not name.endswith(OPTIONAL)]),
        _format_names("Unexpected key(s)", [name for name in renamed if name not in own]),
        *(_describe_mismatch(name, renamed[name], own[name]) for name in own if name in renamed),
    ]
    if any(problems):
        raise CheckpointError(f"The weights do not match the model: {' '.join(filter(None, problems))}")


def check_averages(model: nn.Module, averages: Mapping[str, Any], key: str) -> None:
    """Raise if averaged weights are not tensors, or have other shapes than the weights of the same names.

    Args:
        model: Model, wrapped or not.
        averages: Averaged weights by name.
        key: Key of the averages in the checkpoint.

    Raises:
        InvalidDataError: If an average is invalid.
    """
    own = strip_wrappers(model).state_dict()
    for name, value in rename_weights(model, averages).items():
        expected = own.get(name)
        if expected is None and not isinstance(value, Tensor) and not name.endswith(EXTRA_STATE):
            raise InvalidDataError(join(key, name), "a tensor", shorten(value))
        if isinstance(expected, Tensor) and not is_lazy(expected) and getattr(value, "shape", None) != expected.shape:
            raise InvalidDataError(join(key, name), f"a tensor of shape {tuple(expected.shape)}", shorten(value))


# -- private ---------------------------------------------------------------------------------


def _rename_versions(model: nn.Module, versions: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return versions by the names of the modules of a model, which may be wrapped in another way."""
    if versions is None:
        return None
    without_prefixes = {remove_wrapper_names(name): version for name, version in versions.items()}
    names = [name for name, _ in model.named_modules()]
    renamed = {name: versions.get(name, without_prefixes.get(remove_wrapper_names(name))) for name in names}
    return {name: version for name, version in renamed.items() if version is not None}


def _get_converting_modules(model: nn.Module) -> tuple[str, ...]:
    """Return the prefixes of modules that run their own code when state is loaded into them."""
    inner = strip_wrappers(model)
    if type(inner).load_state_dict is not nn.Module.load_state_dict:
        return ("",)
    return tuple(f"{name}." if name else "" for name, module in inner.named_modules() if _converts_state(module))


def _converts_state(module: nn.Module) -> bool:
    load: Any = type(module)._load_from_state_dict
    # torch's own layers only accept files of older versions, see `OPTIONAL`.
    is_own = load is not nn.Module._load_from_state_dict and not load.__module__.startswith("torch.nn.modules.")
    return is_own or bool(module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks)


def _fits(name: str, value: Any, own: Any) -> bool:
    """Return whether a value can be loaded in place of a value of the model without losing a part of it."""
    both_tensors = isinstance(value, Tensor) and isinstance(own, Tensor)
    return _has_same_shape(value, own) and not (both_tensors and _describe_type_mismatch(name, value, own))


def _has_same_shape(value: Any, own: Any) -> bool:
    """Return whether both are tensors of the same shape, or both are extra state without a shape."""
    return own is not None and getattr(value, "shape", None) == getattr(own, "shape", None)


def _format_names(title: str, names: list[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"{title} in state_dict: {quoted}." if names else ""


def _describe_mismatch(name: str, value: Any, own: Any) -> str:
    """Return the message about a value that cannot be copied into the model, "" if it can."""
    if name.rpartition(".")[2] == EXTRA_STATE or not isinstance(own, Tensor):
        return ""
    if not isinstance(value, Tensor):
        return f"invalid value for {name}: expected a tensor, got {shorten(value)}."
    if is_lazy(own) or _has_same_shape(value, own):
        return _describe_type_mismatch(name, value, own)
    shape, expected = tuple(getattr(value, "shape", ())), tuple(own.shape)
    # torch stores scalars of old versions as tensors of one element.
    if not expected and shape == (1,):
        return ""
    return f"size mismatch for {name}: the file contains {list(shape)}, the model contains {list(expected)}."


def _describe_type_mismatch(name: str, value: Tensor, own: Tensor) -> str:
    """Return the message about a tensor whose values would be lost by the conversion, "" if it can be copied."""
    if value.layout == own.layout and _get_number_type(value) <= _get_number_type(own):
        return ""
    return f"type mismatch for {name}: the file contains {value.dtype}, the model contains {own.dtype}."


def _get_number_type(tensor: Tensor) -> tuple[bool, bool]:
    """Return whether a tensor contains complex numbers, and whether it contains floating-point numbers."""
    return tensor.is_complex(), tensor.is_complex() or tensor.is_floating_point()


def nest_weights(weights: Mapping[str, Any], models: Sequence[str]) -> dict[str, Any]:
    """Return the weights of an `nn.ModuleDict` by model.

    Args:
        weights: State dict of the `nn.ModuleDict`, or a part of it.
        models: Names of the models; empty for a single model, whose weights are returned unchanged.

    Returns:
        State dict of each model by name.
    """
    if not models:
        return dict(weights)
    nested: dict[str, Any] = {name: {} for name in models}
    for full_name, value in weights.items():
        model, _, name = full_name.partition(".")
        nested[model][name] = value
    return nested


def flatten_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights under the names of the state dict of a run's model.

    Args:
        weights: State dict of one model, or the state dicts of named models by name.
    """
    # A single model whose only content is the extra state of modules has mappings as values as well.
    if not all(isinstance(value, Mapping) and not name.endswith("_extra_state") for name, value in weights.items()):
        return dict(weights)
    return {f"{model}.{name}": value for model, state in weights.items() for name, value in state.items()}
