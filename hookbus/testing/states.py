"""Checks of the state of a hook: `state_dict` and `load_state_dict`, deep copies and pickling."""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hookbus.bus import HookBus
from hookbus.errors import format_error
from hookbus.hook import Hook


def fingerprint(value: Any) -> str:
    """Return the SHA-256 hash of nested containers of built-in types and tensors.

    Bitwise identical values have equal hashes. The order of mappings is significant.

    Args:
        value: Nested mappings, sequences, built-in values and tensors.
    """
    digest = hashlib.sha256()
    _update_digest(digest, value)
    return digest.hexdigest()


def _update_digest(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous()
        digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _update_digest(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} items".encode())
        for item in value:
            _update_digest(digest, item)
    else:
        digest.update(repr(value).encode())


def initial_fingerprint(cls: type[Hook], settings: Mapping[str, Any]) -> str:
    """Return the fingerprint of the state of a new instance.

    Raises:
        AssertionError: If two new instances have different states.
    """
    with explain_errors(f"{cls.__name__}.state_dict() fails in a new instance: ", form=format_error):
        first, second = (fingerprint(_new_instance(cls, settings).state_dict()) for _ in range(2))
    ensure(
        first == second,
        f"{cls.__name__}.state_dict() differs between two new instances. Return a deterministic initial state.",
    )
    return first


def check_state_dict(cls: type[Hook], settings: Mapping[str, Any], hook: Hook, initial: str) -> None:
    """Check that a new instance can load the state of a trained instance."""
    name = cls.__name__
    saved = _save(hook.state_dict(), name)
    ensure(
        fingerprint(hook.state_dict()) == fingerprint(_load(saved)),
        f"{name}.state_dict() differs between two consecutive calls. Calling it must not change the state.",
    )
    fresh = _new_instance(cls, settings)
    ensure(
        fingerprint(fresh.state_dict()) == initial,
        f"{name}: the state of one instance is part of the state of a new one. Store state on the instance, not on "
        "the class.",
    )
    _check_loading(fresh, saved, name)


def check_copies(hook: Hook) -> None:
    """Check that a hook of a bus without an active run can be copied and pickled, with the same settings.

    Pickling is checked if pickle can find the class by its name.
    """
    cls = type(hook)
    methods: dict[str, Callable[[Hook], Hook]] = {"copy.deepcopy": copy.deepcopy}
    if _is_found_by_name(cls):
        methods["pickle"] = lambda hook: pickle.loads(pickle.dumps(hook))
    for method, make_copy in methods.items():
        with explain_errors(f"{method} fails: "):
            copied = make_copy(hook)
        ensure(copied.config == hook.config, f"{cls.__name__}: {method} changes the settings.")


def _is_found_by_name(cls: type) -> bool:
    """Return whether pickle finds a class, unlike classes of functions and of code run by `exec`."""
    value: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is not None


def _check_loading(fresh: Hook, saved: bytes, name: str) -> None:
    loaded = _load(saved)
    with explain_errors(f"{name}.load_state_dict() fails for the state of state_dict(): ", form=format_error):
        fresh.load_state_dict(loaded)
    ensure(
        fingerprint(fresh.state_dict()) == fingerprint(_load(saved)),
        f"{name}: a new instance differs from the state that it loaded. Restore all entries in load_state_dict.",
    )
    ensure(
        fingerprint(loaded) == fingerprint(_load(saved)),
        f"{name}.load_state_dict(state) modifies its argument. Copy the values.",
    )


def _new_instance(cls: type[Hook], settings: Mapping[str, Any]) -> Hook:
    # Registration binds the state to a bus, as in a run.
    fresh = cls(dict(settings))
    HookBus([fresh])
    return fresh


def _save(state: Mapping[str, Any], name: str) -> bytes:
    torch.save(state, buffer := io.BytesIO())
    with explain_errors(f"{name}.state_dict() contains objects that torch.load(weights_only=True) rejects: "):
        _load(buffer.getvalue())
    return buffer.getvalue()


def _load(saved: bytes) -> Any:
    return torch.load(io.BytesIO(saved), weights_only=True)


@contextmanager
def explain_errors(
    message: str, types: tuple[type[Exception], ...] = (Exception,), form: Callable[[Exception], str] = str
) -> Iterator[None]:
    """Convert exceptions of these types to an AssertionError that starts with a message."""
    try:
        yield
    except types as error:
        raise AssertionError(message + form(error)) from error


def ensure(condition: bool, message: str) -> None:
    """Raise an AssertionError with a message if a condition is false."""
    if not condition:
        raise AssertionError(message)
