"""Redaction of configurations: one place decides which values are secrets and what is recorded instead.

A secret is declared by its type (`SecretStr`), named by its key (`api_key`), or recognized in a string (a password in
a URL). `secrets` recognizes keys and strings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import AliasChoices, BaseModel, RootModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from hookbus._utils.secrets import REDACTED, hide_secrets, is_ambiguous, is_reference, is_secret, joins_to_secret


def escape_surrogates(text: str) -> str:
    """Replace lone surrogates by escape sequences, so that the text can be encoded as UTF-8.

    Lone surrogates occur in file names whose bytes are not valid UTF-8.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def redact_config(config: Any) -> Any:
    """Convert a configuration to dicts and lists, with its secrets redacted.

    Args:
        config: A pydantic model, another object with `model_dump`, or nested mappings and sequences of these.
    """
    return redact(config)


def redact(value: Any, key: str = "") -> Any:
    """Return a copy with secrets redacted: strings whose key names a secret, and secrets inside other strings.

    The copy consists of dicts with string keys, lists, numbers, booleans, strings and None. Numbers, booleans and None
    are never redacted, except for values of `Secret[T]`.

    Args:
        value: Nested mappings, sequences and values; objects of other types become their `str`.
        key: Key of the value.
    """
    return _redact(value, key, is_secret(key))


def _redact(value: Any, key: str, hidden: bool) -> Any:
    """Return a redacted copy; `hidden` means that the key, or one of the keys around it, names a secret."""
    # Looked up in the type: a model class has the attribute as well, but cannot be dumped.
    if hasattr(type(value), "model_dump"):
        value = dump_model(value)
    if isinstance(value, Mapping):
        return _redact_mapping(value, key, hidden)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = list(value)
        return [_redact(item, key, hidden or _follows_name(items, index)) for index, item in enumerate(items)]
    return _redact_scalar(value, hidden)


def _redact_mapping(mapping: Mapping[Any, Any], key: str, hidden: bool) -> dict[str, Any]:
    redacted = {}
    for name, item in mapping.items():
        text = str(name)
        is_hidden = hidden or is_secret(text) or joins_to_secret(key, text) or is_secret(_get_name(mapping, text))
        redacted[hide_secrets(escape_surrogates(text))] = _redact(item, text, is_hidden)
    return redacted


def _get_name(mapping: Mapping[Any, Any], key: str) -> str:
    """Return the name of a value in `{"name": "API_KEY", "value": ...}`, the form of the variables of containers."""
    if key.lower() != "value":
        return ""
    return next((str(item) for name, item in mapping.items() if str(name).lower() in ("name", "key")), "")


def _follows_name(items: Sequence[Any], index: int) -> bool:
    """Return whether the item before names a secret: an option of a command line, or the name of a pair."""
    name = items[index - 1] if index else None
    if not isinstance(name, str):
        return False
    is_option = name.startswith("-") and not str(items[index]).startswith("-")
    return (is_option or (len(items) == 2 and not is_ambiguous(name))) and is_secret(name)


def _redact_scalar(value: Any, hidden: bool) -> int | float | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, SECRET_TYPES):
        return REDACTED if str(value) else ""
    # The abstract base classes of `numbers` include the scalars of NumPy.
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    text = escape_surrogates(str(value))
    return REDACTED if hidden and _may_be_secret(text) else hide_secrets(text)


def _may_be_secret(text: str) -> bool:
    """Return whether a string can be a secret, and not a special token: `<pad>`, `[MASK]`."""
    is_special_token = (text[:1], text[-1:]) in (("<", ">"), ("[", "]"))
    return bool(text) and not is_special_token and not is_reference(text)


SECRET_TYPES = (SecretStr, SecretBytes, Secret)
"""Types of pydantic that declare a secret."""


def dump_model(model: BaseModel, **options: Any) -> Any:
    """Dump a model, with the values of its secret types replaced by `***`."""
    return _hide_dumped(model.model_dump(**{"mode": "json", **options}), model)


def hide_declared(value: Any, declared: Any) -> Any:
    """Return a copy of settings in which the values of secret types are replaced by `***`.

    None, empty strings and references to environment variables are not secrets.

    Args:
        value: Settings that are not validated, as nested mappings and sequences.
        declared: Type of the settings, such as a pydantic model; of a class without fields, the parameters.
    """
    origin, arguments = get_origin(declared), get_args(declared)
    alias = getattr(declared, "__value__", None) or getattr(declared, "__supertype__", None)  # `type X = ...`, NewType
    if origin is Annotated or alias is not None:
        return hide_declared(value, arguments[0] if arguments else alias)
    if isinstance(kind := origin or declared, type) and issubclass(kind, SECRET_TYPES):
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


MIN_REPLACED_LENGTH = 4
"""Shorter secrets are replaced only where a message quotes them, because other words may contain them."""


def hide_value(value: Any, path: Sequence[Any], declared: Any) -> Any:
    """Return what a message shows of an invalid setting: the value, with its secrets redacted.

    Args:
        value: The invalid value.
        path: Path of the value in the settings.
        declared: All settings, with the values of secret types redacted by `hide_declared`.
    """
    for key in path:
        is_known = key in declared if isinstance(declared, Mapping) else isinstance(declared, list)
        if not is_known:
            declared = value
            break
        declared = declared[key]
    names = [key for key in path if isinstance(key, str)]
    # A secret key hides everything below it.
    name = next((key for key in names if is_secret(key)), names[-1] if names else "")
    shown = redact(declared, name)
    # Redaction also converts objects of other types to strings, which the message should not.
    return shown if any(_iter_changed(value, shown)) or shown == REDACTED else value


def hide_in_message(message: str, value: Any, shown: Any) -> str:
    """Return a message in which the secrets of a value are replaced."""
    for secret, replacement in _iter_changed(value, shown):
        message = message.replace(repr(secret), repr(replacement))
        if len(secret) >= MIN_REPLACED_LENGTH:
            message = message.replace(secret, replacement)
    return message


def _iter_changed(value: Any, shown: Any) -> Iterator[tuple[str, str]]:
    """Yield the strings that differ, with their replacements."""
    if isinstance(value, str) and isinstance(shown, str):
        if value != shown:
            yield value, shown
    elif isinstance(value, Mapping) and isinstance(shown, Mapping):
        for item, other in zip(value.values(), shown.values(), strict=False):
            yield from _iter_changed(item, other)
    elif isinstance(value, (list, tuple)) and isinstance(shown, list):
        for item, other in zip(value, shown, strict=False):
            yield from _iter_changed(item, other)
    elif isinstance(shown, str) and isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_changed(item, shown)
