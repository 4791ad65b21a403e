"""Keras with the torch backend: hooks of hookbus in `model.fit`, and callbacks of Keras in trainings of hookbus.

Importing this package does not import Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookbus_keras.capabilities import CAPABILITIES

if TYPE_CHECKING:
    from hookbus_keras.bridge import KerasBridge
    from hookbus_keras.callback_hook import KerasCallbackHook

__all__ = ["CAPABILITIES", "KerasBridge", "KerasCallbackHook"]


def __getattr__(name: str) -> Any:
    if name == "KerasBridge":
        from hookbus_keras.bridge import KerasBridge

        return KerasBridge
    if name == "KerasCallbackHook":
        from hookbus_keras.callback_hook import KerasCallbackHook

        return KerasCallbackHook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
