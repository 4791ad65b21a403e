"""Steps of the loop that hooks may replace or wrap.

An action goes through pluggy's own caller, so `wrapper=True`, `tryfirst` and `trylast` work as pluggy documents
them, and the first implementation that returns something other than None gives the result. Priorities mean depth
here too: small is outermost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pluggy

from hookbus.errors import PointError
from hookbus.markers import PROJECT

__all__ = ["ACTIONS", "ActionSpecs", "Actions", "Step", "step_of"]

hookspec = pluggy.HookspecMarker(PROJECT)

Step = Callable[[Any, Any], Any]


class ActionSpecs:
    """The actions, one method each."""

    @hookspec(firstresult=True)
    def train_step(self, run, batch):  # type: ignore[no-untyped-def]
        """Train on one micro-batch: forward, backward, and the update where it is due. Returns the outputs."""

    @hookspec(firstresult=True)
    def val_step(self, run, batch):  # type: ignore[no-untyped-def]
        """Judge one validation batch. Returns the outputs, the loss among them where there is one."""

    @hookspec(firstresult=True)
    def test_step(self, run, batch):  # type: ignore[no-untyped-def]
        """Judge one test batch."""


ACTIONS: dict[str, tuple[str, ...]] = {name: ("batch",) for name in vars(ActionSpecs) if not name.startswith("_")}
"""The arguments of each action besides `run`."""


class _Facade:
    """One implementation of one action as a plugin of its own, so that the order of registration is ours."""

    def __init__(self, action: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
        setattr(self, action, function)
        self.options = options


class _Caller(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        return plugin.options if isinstance(plugin, _Facade) and name in ACTIONS else None


class Actions:
    """The callers of all actions for the present members of a bus.

    Args:
        implementations: for an action, pluggy's (function, options, priority), in the order of registration.
    """

    def __init__(
        self, implementations: Callable[[str], Sequence[tuple[Callable[..., Any], dict[str, Any], int]]]
    ) -> None:
        self._implementations = implementations

    def step(self, action: str, default: Step) -> Step:
        """The function that carries an action out: `default` itself where no hook has a say."""
        found = self._implementations(action)
        if not found:
            return default
        manager = _Caller(PROJECT)
        manager.add_hookspecs(ActionSpecs)
        manager.register(_Facade(action, default, {"trylast": True, "specname": action}))
        for function, options, _ in sorted(found, key=lambda each: -each[2]):
            manager.register(_Facade(action, function, {**_pluggy_options(options), "specname": action}))
        caller = getattr(manager.hook, action)
        return lambda run, batch: caller(run=run, batch=batch)


def step_of(function: Callable[..., Any]) -> Step:
    """A loop's own step as an implementation: `step(batch)` or `step(run, batch)`, whatever the names.

    Raises:
        PointError: it takes neither one nor two arguments.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty]
    if len(needed) == 1:
        return lambda _, batch: function(batch)
    if len(needed) == 2:
        return lambda run, batch: function(run, batch)
    name = getattr(function, "__name__", function)
    raise PointError(f"A step takes (batch) or (run, batch); {name} takes {len(needed)} arguments.")


def _pluggy_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options.get(name, False) for name in ("wrapper", "tryfirst", "trylast")}
