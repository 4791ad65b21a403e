"""Secrets that a type declares: `SecretStr`, `SecretBytes` and `Secret[T]` in pydantic models and containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, repeat
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import AliasChoices, BaseModel, RootModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from hookbus._utils.secret_values import REDACTED, is_reference

SECRET_TYPES = (SecretStr, SecretBytes, Secret)
"""Types of pydantic that declare a secret."""


def dump_model(model: BaseModel, **options: Any) -> Any:
    """Dump a model, with the values of its secret types replaced by `***`.

    Args:
        model: The model.
        options: Options of `model_dump`; by default, the mode is "json".
    """
    return _hide_dumped(model.model_dump(**{"mode": "json", **options}), model)


def hide_declared(value: Any, declared: Any) -> Any:
    """Return a copy of settings in which the values of secret types are replaced by `***`.

    None, empty strings and references to environment variables are not secrets.

    Args:
        value: Settings that are not validated, as nested mappings and sequences.
        declared: Type of the settings, such as a pydantic model; of a class without fields, the parameters.
    """
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated or hasattr(declared, "__value__") or hasattr(declared, "__supertype__"):
        return hide_declared(value, arguments[0] if arguments else _get_alias_target(declared))
    if _is_secret_type(origin or declared):
        return _hide(value)
    if origin in (Union, UnionType):
        for option in arguments:
            value = hide_declared(value, option)
        return value
    if isinstance(declared, type) and issubclass(declared, RootModel):
        return hide_declared(value, declared.model_fields["root"].annotation)
    if isinstance(value, Mapping):
        fields, default = _get_fields(declared), arguments[-1] if len(arguments) == 2 else None
        return {key: hide_declared(item, fields.get(key, default)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_declared(item, type_) for item, type_ in zip(value, _iter_item_types(arguments), strict=False)]
    return value


def _hide_dumped(dumped: Any, source: Any) -> Any:
    """Hide the secrets of a dump, given the object that was dumped."""
    if isinstance(source, SECRET_TYPES):
        return _hide(dumped)
    if isinstance(source, RootModel):
        return _hide_dumped(dumped, source.root)
    if isinstance(source, BaseModel) and isinstance(dumped, Mapping):
        # Serializers can reveal a secret as a part of a value, and rename a field.
        values = {**(source.model_extra or {}), **_get_values(source)}
        return {key: _hide_dumped(item, values.get(key)) for key, item in dumped.items()}
    if isinstance(source, Mapping) and isinstance(dumped, Mapping):
        values = {str(key): item for key, item in source.items()}
        return {key: _hide_dumped(item, values.get(str(key))) for key, item in dumped.items()}
    if isinstance(source, (list, tuple, set, frozenset)) and isinstance(dumped, (list, tuple, set, frozenset)):
        return [_hide_dumped(item, value) for item, value in zip(dumped, source, strict=False)]
    return dumped


def _get_values(model: BaseModel) -> dict[str, Any]:
    """Return the values of the fields of a model by each of their names in a dump."""
    fields, values = type(model).model_fields.items(), vars(model)
    return {key: values[name] for name, field in fields for key in (name, field.serialization_alias or name)}


def _hide(value: Any) -> Any:
    is_harmless = value is None or value in ("", b"") or (isinstance(value, str) and is_reference(value))
    return value if is_harmless else REDACTED


def _is_secret_type(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, SECRET_TYPES)


def _get_alias_target(declared: Any) -> Any:
    """Return the type that a `type` statement or a `NewType` refers to."""
    return getattr(declared, "__value__", None) or getattr(declared, "__supertype__", None)


def _iter_item_types(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the types of the items of a sequence: those of a tuple, then the last one for all further items."""
    types = [argument for argument in arguments if argument is not Ellipsis]
    return chain(types, repeat(types[-1] if types else None))


def _get_fields(declared: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a class by each of their names; {} for another type."""
    declared = get_origin(declared) or declared
    if not isinstance(declared, type):
        return {}
    if issubclass(declared, BaseModel):
        fields = declared.model_fields.items()
        return {key: field.annotation for name, field in fields for key in _get_keys(name, field)}
    is_annotated = dataclasses.is_dataclass(declared) or is_typeddict(declared)
    with suppress(Exception):  # an annotation that cannot be evaluated, or a class without a signature
        return get_type_hints(declared if is_annotated else declared.__init__)
    return {}


def _get_keys(name: str, field: FieldInfo) -> Iterator[str]:
    """Yield the keys under which a field is set: its name and its aliases."""
    yield name
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias, field.alias]
    yield from (choice for choice in choices if isinstance(choice, str))
