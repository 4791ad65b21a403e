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
    from hookbus._run.known_secrets import KnownSecrets, iter_settings

    known = KnownSecrets()
    _redact.set(lambda text: known.redact(text, trainer.config, iter_settings(trainer.bus.hooks.values())))


def redact_text(text: str) -> str:
    """Return a text of the command without secrets.

    Args:
        text: Text to print.
    """
    return str(_redact.get()(text))
