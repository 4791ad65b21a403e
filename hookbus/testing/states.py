"""Is the state of a hook plain data that another instance can go on from?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from hookbus.bus import HookBus
from hookbus.hook import Hook
from hookbus.testing.fingerprints import fingerprint

__all__ = ["check_state", "fresh_state", "require"]


def fresh_state(cls: type[Hook], settings: Mapping[str, Any]) -> str:
    """The fingerprint of the state that a new instance has.

    Raises:
        AssertionError: no two instances have the same.
    """
    first, second = (fingerprint(_fresh(cls, settings).state_dict()) for _ in range(2))
    require(first == second, f"{cls.__name__}.state_dict() differs for two new instances. Nothing has happened yet.")
    return first


def check_state(cls: type[Hook], settings: Mapping[str, Any], hook: Hook, new: str) -> None:
    """See that a fresh instance can go on from the state of one that has trained.

    Args:
        cls: the hook class.
        settings: for the fresh instance.
        hook: an instance that has trained.
        new: what `fresh_state` was before.

    Raises:
        AssertionError: it cannot; the message says why.
    """
    name = cls.__name__
    saved = _saved(hook.state_dict(), name)
    require(
        fingerprint(hook.state_dict()) == fingerprint(_loaded(saved)),
        f"{name}.state_dict() differs when it is asked for again. Asking must change nothing.",
    )
    fresh = _fresh(cls, settings)
    require(
        fingerprint(fresh.state_dict()) == new,
        f"{name}: what one instance did is in the state of a new one. Keep state on the instance, not on the class.",
    )
    _check_loading(fresh, saved, name)


def _check_loading(fresh: Hook, saved: bytes, name: str) -> None:
    loaded = _loaded(saved)
    fresh.load_state_dict(loaded)
    require(
        fingerprint(fresh.state_dict()) == fingerprint(_loaded(saved)),
        f"{name}: a fresh instance that loads the state of another has a different state.",
    )
    require(
        fingerprint(loaded) == fingerprint(_loaded(saved)),
        f"{name}.load_state_dict(state) changes the state it is given. Take copies.",
    )


def _fresh(cls: type[Hook], settings: Mapping[str, Any]) -> Hook:
    fresh = cls(dict(settings))
    HookBus([fresh])
    return fresh


def _saved(state: Mapping[str, Any], name: str) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    try:
        _loaded(buffer.getvalue())
    except Exception as error:
        raise AssertionError(f"{name}.state_dict() is not plain data: {error}") from error
    return buffer.getvalue()


def _loaded(saved: bytes) -> Any:
    return torch.load(io.BytesIO(saved), weights_only=True)


def require(holds: bool, message: str) -> None:
    """Raise an AssertionError with the message unless something holds."""
    if not holds:
        raise AssertionError(message)
