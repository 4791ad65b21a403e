"""Actions: steps of the loop that hooks may replace or wrap.

Actions are called by pluggy, so `wrapper=True`, `tryfirst` and `trylast` behave as documented by pluggy, and the first
implementation that returns a value other than None determines the result. Implementations with a lower priority run
outermost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import pluggy

from hookbus._events.checks import Implementation
from hookbus._events.codegen import use_spec_names
from hookbus._events.failure_notes import annotate
from hookbus._events.markers import PROJECT
from hookbus.errors import PointError

_pluggy_spec = pluggy.HookspecMarker(PROJECT)

F = TypeVar("F", bound=Callable[..., Any])
Step = Callable[[Any, Any], Any]


def actionspec(function: F) -> F:
    """Mark a method of a spec class as an action. It lists `run` and its arguments."""
    return _pluggy_spec(firstresult=True)(function)


def action_arguments(specs: type) -> dict[str, tuple[str, ...]]:
    """Return the arguments of each action of a spec class in addition to `run`."""
    methods = {name: method for name, method in vars(specs).items() if not name.startswith("_")}
    return {
        name: tuple(argument for argument in inspect.signature(method).parameters if argument not in ("self", "run"))
        for name, method in methods.items()
    }


class _PluggyAdapter:
    """Adapter that presents one implementation of one action to pluggy as a plugin.

    A separate plugin per implementation determines the order of registration, and thereby the order of the calls.
    """

    def __init__(self, action: str, function: Callable[..., Any], *, wrapper: bool = False) -> None:
        setattr(self, action, function)
        self.action, self.wrapper = action, wrapper


class _Caller(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        return {"wrapper": plugin.wrapper} if isinstance(plugin, _PluggyAdapter) and name == plugin.action else None


class Actions:
    """Callers of the actions for the registered plugins of a bus.

    Args:
        specs: Spec class of the actions.
    """

    def __init__(self, specs: type) -> None:
        self._specs = specs

    def build_step(self, action: str, default: Step, implementations: Sequence[Implementation]) -> Step:
        """Return the function that executes an action: `default` if no hook implements the action.

        Exceptions of hooks always propagate, because the step has no result without them.

        Args:
            action: Name of the action.
            default: Step of the loop.
            implementations: Implementations of the action, outermost first.
        """
        if not implementations:
            return default
        caller = _build_caller(self._specs, action, default, implementations)

        def execute(run: Any, batch: Any) -> Any:
            try:
                return caller(run=run, batch=batch)
            except Exception as error:
                raiser = _failing_implementation(error, implementations)
                if raiser is None:
                    raise
                annotated = annotate(error, raiser.hook, raiser.plugin, action, run.clock)
                if annotated is error:
                    raise  # keeps the traceback free of this frame
                raise annotated from error

        return execute


def _build_caller(
    specs: type, action: str, default: Step, implementations: Sequence[Implementation]
) -> Callable[..., Any]:
    """Build pluggy's caller of an action, with the step of the loop as the innermost implementation.

    Args:
        specs: Spec class of the actions.
        action: Name of the action.
        default: Step of the loop.
        implementations: Implementations, outermost first.
    """
    manager = _Caller(PROJECT)
    manager.add_hookspecs(specs)
    manager.register(_PluggyAdapter(action, lambda run, batch: default(run, batch)))
    # pluggy calls the plugin that was registered last first.
    for implementation in reversed(implementations):
        manager.register(
            _PluggyAdapter(action, use_spec_names(implementation), wrapper=bool(implementation.options.get("wrapper")))
        )
    return getattr(manager.hook, action)  # type: ignore[no-any-return]


def _failing_implementation(error: Exception, implementations: Sequence[Implementation]) -> Implementation | None:
    """Return the implementation that raised an exception, None if the step of the loop raised it."""
    trace, raiser = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        # A frame of this module within the traceback is the lambda around the step of the loop: frames below it belong
        # to the loop, unless a further implementation follows.
        if frame.f_globals is globals():
            raiser = None
        else:
            raiser = next((item for item in implementations if _is_running(item.call, frame)), raiser)
        trace = trace.tb_next
    return raiser


def _is_running(function: Any, frame: FrameType) -> bool:
    plain = inspect.unwrap(getattr(function, "__func__", function))
    owner = getattr(function, "__self__", None)
    # Instances of one class share the code object; `self` distinguishes them.
    return frame.f_code is plain.__code__ and (owner is None or frame.f_locals.get("self", owner) is owner)


def as_step(function: Callable[..., Any]) -> Step:
    """Return a step of a custom loop as a function of `(run, batch)`.

    Args:
        function: `step(batch)` or `step(run, batch)`, with any parameter names.

    Raises:
        PointError: If the function does not have one or two required parameters.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty]
    if len(required) == 1:
        return lambda _, batch: function(batch)
    if len(required) == 2:
        return lambda run, batch: function(run, batch)
    name = getattr(function, "__name__", function)
    raise PointError(
        f"{name}: invalid step, got {len(required)} required parameters. Define it as (batch) or (run, batch)."
    )
