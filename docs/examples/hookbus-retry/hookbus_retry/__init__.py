"""Tries a step again when something outside of it failed for a moment."""

from hookbus_retry.hook import RetryConfig, RetryHook

__all__ = ["RetryConfig", "RetryHook"]
