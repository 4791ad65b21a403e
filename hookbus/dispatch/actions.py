"""Steps of the loop that hooks may replace or wrap.

An action goes through pluggy's own caller, so `wrapper=True`, `tryfirst` and `trylast` work as pluggy documents
them, and the first implementation that returns something other than None gives the result. Priorities mean depth
here too: small is outermost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pluggy

from hookbus.dispatch.checks import Implementation
from hookbus.dispatch.failures import annotate
from hookbus.errors import PointError
from hookbus.markers import PROJECT

__all__ = ["ACTIONS", "ActionSpecs", "Actions", "Step", "step_of"]

hookspec = pluggy.HookspecMarker(PROJECT)

Step = Callable[[Any, Any], Any]


class ActionSpecs:
    """The actions, one method each; `runner` and `data_batch` are second spellings of `run` and `batch`."""

    @hookspec(firstresult=True)
    def train_step(self, run, batch, runner, data_batch):  # type: ignore[no-untyped-def]
        """Train on one micro-batch: forward, backward, and the update where it is due. Returns the outputs."""

    @hookspec(firstresult=True)
    def val_step(self, run, batch, runner, data_batch):  # type: ignore[no-untyped-def]
        """Judge one validation batch. Returns the outputs, the loss among them where there is one."""

    @hookspec(firstresult=True)
    def test_step(self, run, batch, runner, data_batch):  # type: ignore[no-untyped-def]
        """Judge one test batch."""


ACTIONS: dict[str, tuple[str, ...]] = {name: ("batch",) for name in vars(ActionSpecs) if not name.startswith("_")}
"""The arguments of each action besides `run`."""


class _Face:
    """One implementation of one action as a plugin of its own, so that the order of registration is ours."""

    def __init__(self, action: str, function: Callable[..., Any], *, wrapper: bool = False) -> None:
        setattr(self, action, function)
        self.wrapper = wrapper


class _Caller(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        return {"wrapper": plugin.wrapper} if isinstance(plugin, _Face) and name in ACTIONS else None


class Actions:
    """The callers of all actions for the present members of a bus.

    Args:
        implementations: for an action, those of the members, outermost first.
    """

    def __init__(self, implementations: Callable[[str], Sequence[Implementation]]) -> None:
        self._implementations = implementations

    def step(self, action: str, default: Step) -> Step:
        """The function that carries an action out: `default` itself where no hook has a say.

        An exception that a hook raises there always goes on, since without the step there is no result.
        """
        found = self._implementations(action)
        if not found:
            return default
        caller = _caller(action, default, found)

        def carry_out(run: Any, batch: Any) -> Any:
            try:
                return caller(run=run, batch=batch, runner=run, data_batch=batch)
            except Exception as error:
                raiser = _raiser(error, found)
                if raiser is None:
                    raise
                shown = annotate(error, raiser.hook, raiser.plugin, action, run.clock)
                if shown is error:
                    raise
                raise shown from error

        return carry_out


def _caller(action: str, default: Step, found: Sequence[Implementation]) -> Callable[..., Any]:
    """Pluggy's own caller of an action: the implementations, outermost first, around the loop's own step."""
    manager = _Caller(PROJECT)
    manager.add_hookspecs(ActionSpecs)
    manager.register(_Face(action, lambda run, batch: default(run, batch)))
    for each in reversed(found):  # pluggy calls the one that came last first
        manager.register(_Face(action, each.call, wrapper=bool(each.options.get("wrapper"))))
    return getattr(manager.hook, action)  # type: ignore[no-any-return]


def _raiser(error: Exception, found: Sequence[Implementation]) -> Implementation | None:
    """The implementation in which an exception arose, None where it was the loop's own step."""
    trace, raiser = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals is globals():
            raiser = None
        else:
            raiser = next((each for each in found if _is_running(each.call, frame)), raiser)
        trace = trace.tb_next
    return raiser


def _is_running(function: Any, frame: FrameType) -> bool:
    plain = inspect.unwrap(getattr(function, "__func__", function))
    owner = getattr(function, "__self__", None)
    return frame.f_code is plain.__code__ and (owner is None or frame.f_locals.get("self", owner) is owner)


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
