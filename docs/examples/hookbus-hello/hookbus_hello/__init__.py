"""Says hello in a training, and how the loss goes."""

from hookbus_hello.config import HelloConfig
from hookbus_hello.hook import HelloHook

__all__ = ["HelloConfig", "HelloHook"]
