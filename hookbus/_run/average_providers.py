"""Hooks that average the weights of a run: one of them for all results, further ones for results with their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookbus.errors import HookError

if TYPE_CHECKING:
    from hookbus._run.weights import AverageProvider


class AverageProviders:
    """Providers of averaged weights by the hook that has registered them.

    Args:
        get_hooks: Function that returns the names of the hooks in the order of their registration. It is the order of
            the providers, whose first one is the primary one.
    """

    def __init__(self, get_hooks: Callable[[], Iterable[str]]) -> None:
        self._get_hooks = get_hooks
        self._providers: dict[str, AverageProvider] = {}
        self._checked: set[str] = set()  # owners whose names are checked

    def register(self, owner: str, provider: AverageProvider) -> None:
        """Register the provider of a hook, or of the loop with the owner "".

        Raises:
            HookError: If the provider lacks a method, or the hook has registered another provider.
        """
        _check_methods(provider)
        other = self._providers.get(owner, provider)
        if other is not provider:
            raise HookError(
                f"run.weights.provide: {describe(other, owner)} and {describe(provider, owner)} both average the "
                "weights. Use only one provider per hook."
            )
        self._providers[owner] = provider
        self._checked.discard(owner)

    def unregister(self, owner: str) -> None:
        """Unregister the provider of a hook; with the owner "" all providers."""
        for name in [owner] if owner else list(self._providers):
            self._providers.pop(name, None)

    def get_all(self) -> dict[str, AverageProvider]:
        """Return the providers by hook, the primary one first."""
        if len(self._providers) < 2:
            return self._providers
        positions = {name: i for i, name in enumerate(self._get_hooks())}
        return dict(sorted(self._providers.items(), key=lambda item: positions.get(item[0], -1)))

    def find(self, name: str | None) -> tuple[str, AverageProvider | None]:
        """Return the provider of a hook with its name; the primary one for None, which may be missing."""
        if name is not None:
            return name, self._providers.get(name)
        return next(iter(self.get_all().items()), ("", None))

    def check_names(self, owner: str, averaged: Mapping[str, Any], own: Callable[[], Mapping[str, Any]]) -> None:
        """Check once that averaged weights have the names and shapes of the model.

        Raises:
            HookError: If they have not.
        """
        if owner not in self._checked:
            _check_names(averaged, own(), describe(self._providers[owner], owner))
            self._checked.add(owner)


def describe(provider: object, owner: str) -> str:
    """Return the description of a provider for messages."""
    return f"the hook {owner!r}" if owner else type(provider).__name__


def call_optional(provider: object, name: str) -> Any:
    """Return the result of an optional method; None without the method."""
    method = getattr(provider, name, None)
    return None if method is None else method()


def _check_methods(provider: object) -> None:
    """Raise if a provider lacks a required method."""
    missing = [name for name in ("averaged", "applied") if not callable(getattr(provider, name, None))]
    if missing:
        raise HookError(
            f"run.weights.provide: {type(provider).__name__} has no method {' and no method '.join(missing)}. Pass an "
            "object with averaged(), which returns the averaged weights by name, and applied(), a context manager in "
            "which the model contains them."
        )


def _check_names(averaged: Mapping[str, Any], own: Mapping[str, Any], provider: str) -> None:
    """Raise if averaged weights do not have the names and shapes of the model."""
    wrong = [n for n, value in averaged.items() if n not in own or value.shape != getattr(own[n], "shape", None)]
    if wrong:
        raise HookError(
            f"run.weights.averaged: the averages of {provider} must have the names and shapes of the state dict of the "
            f"model, got {', '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''} ({len(wrong)} of {len(averaged)} do "
            "not match). Return for example `averaged_model.module.state_dict()`."
        )
