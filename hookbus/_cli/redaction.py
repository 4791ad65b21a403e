"""Redaction of what a command prints: by the secrets of its trainer, once it is built, and by keys and patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from hookbus._utils.secrets import hide_secrets

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer

_redact: ContextVar[Callable[[str], Any]] = ContextVar("_redact", default=hide_secrets)


@contextmanager
def redaction_scope() -> Iterator[None]:
    """Context manager of one command, which forgets the secrets of its trainer."""
    token = _redact.set(hide_secrets)
    try:
        yield
    finally:
        _redact.reset(token)


def hide_secrets_of(trainer: Trainer) -> None:
    """Hide the secrets in the configuration and in the hooks of a trainer from now on.

    Args:
        trainer: Trainer of the command.
    """
    from hookbus._events.checks import is_configured
    from hookbus._run.known_secrets import redact_known

    def redact(text: str) -> Any:
        settings = [hook.config for hook in trainer.bus.hooks.values() if is_configured(hook)]
        return redact_known(text, trainer.config, settings)

    _redact.set(redact)


def redact_text(text: str) -> str:
    """Return a text of the command without secrets.

    Args:
        text: Text to print.
    """
    return str(_redact.get()(text))
