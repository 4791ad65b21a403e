"""An example hook that logs a greeting and the mean loss."""

from hookbus_hello.config import HelloConfig
from hookbus_hello.hook import HelloHook

__all__ = ["HelloConfig", "HelloHook"]
