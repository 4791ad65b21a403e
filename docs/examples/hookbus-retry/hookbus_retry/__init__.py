"""An example hook that retries a training step after a transient error."""

from hookbus_retry.hook import RetryConfig, RetryHook

__all__ = ["RetryConfig", "RetryHook"]
