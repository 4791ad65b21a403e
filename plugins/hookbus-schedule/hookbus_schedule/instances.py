"""Instances of a hook that exclude each other."""

from __future__ import annotations

from hookbus import Hook, Run
from hookbus.errors import ConfigError

__all__ = ["check_single"]


def check_single(run: Run, hook: Hook, effect: str) -> None:
    """Check that a hook is the only one of its type.

    Args:
        run: Run with the hooks.
        hook: The hook.
        effect: What each of the hooks does, for the message.

    Raises:
        ConfigError: If there is another one.
    """
    names = sorted(name for name, other in run.bus.hooks.items() if isinstance(other, type(hook)))
    if len(names) > 1:
        raise ConfigError(
            [
                f"hooks {' and '.join(map(repr, names))} {effect}, and the result depends on their order. Remove all "
                "but one of them."
            ]
        )
