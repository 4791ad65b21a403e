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
from hookbus._events.codegen import define_function, generate_spec_class, use_spec_names
from hookbus._events.failure_records import annotate
from hookbus._events.markers import PROJECT, mark_spec
from hookbus._events.points import is_action_spec
from hookbus.errors import PointError

F = TypeVar("F", bound=Callable[..., Any])
Step = Callable[..., Any]
"""Function of the run and the arguments of an action."""

DEFAULT_STEP = "__hookbus_step__"
"""Global variable of the generated function that calls the step of the loop."""


def actionspec(function: F) -> F:
    """Mark a method of a spec class as an action.

    Args:
        function: Method with the arguments `self`, `run`, and those of the action, and its docstring.
    """
    function.action = True  # type: ignore[attr-defined]
    return mark_spec(firstresult=True)(function)


def action_arguments(specs: type) -> dict[str, tuple[str, ...]]:
    """Return the arguments of each action of a spec class in addition to `run`."""
    methods = {name: method for name, method in vars(specs).items() if is_action_spec(method)}
    return {
        name: tuple(argument for argument in inspect.signature(method).parameters if argument not in ("self", "run"))
        for name, method in methods.items()
    }


def parse_action(function: Callable[..., Any]) -> tuple[str, inspect.Signature]:
    """Return the name of the action that a function executes or a method declares, and its signature without `run`.

    Raises:
        PointError: If the first parameter is not `run`, or the function takes `*args`, `**kwargs` or keyword-only
            parameters.
    """
    name, signature = getattr(function, "__name__", repr(function)), inspect.signature(function)
    parameters = list(signature.parameters.values())
    if is_action_spec(function):
        return name, signature.replace(parameters=[p for p in parameters if p.name not in ("self", "run")])
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].name != "run" or any(p.kind not in kinds for p in parameters):
        raise PointError(
            f"{name}{signature}: invalid function of an action. Define it with `run` and positional parameters: "
            f"{name}(run, ...)."
        )
    return name, signature.replace(parameters=parameters[1:])


def missing_step(action: str, arguments: Sequence[str]) -> Step:
    """Return the step of an action without one, which raises an error if no hook implements the action."""

    def fail(*_: Any) -> Any:
        raise PointError(
            f"{action}: no hook has returned a result, and the action has no step. Register a hook with a method "
            f"{action}({', '.join(('run', *arguments))}), or pass a step to bus.action({action!r}, step)."
        )

    return fail


def bind_action(
    action: str, call: Callable[..., Any], signature: inspect.Signature, doc: str = ""
) -> Callable[..., Any]:
    """Return a function that executes an action, with positional or keyword arguments."""

    def execute(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PointError(f"{action}: {error}. Call {action}{signature}.") from None
        bound.apply_defaults()
        return call(*bound.arguments.values())

    execute.__name__ = execute.__qualname__ = action
    execute.__doc__ = doc or f"Execute the action {action}."
    execute.__signature__ = signature  # type: ignore[attr-defined]
    return execute


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


def build_step(action: str, arguments: Sequence[str], default: Step, implementations: Sequence[Implementation]) -> Step:
    """Return the function that executes an action: `default` if no hook implements the action.

    Exceptions of hooks always propagate, because the step has no result without them.
    """
    if not implementations:
        return default
    caller = _build_caller(action, arguments, default, implementations)

    def execute(run: Any, *values: Any) -> Any:
        try:
            return caller(run=run, **dict(zip(arguments, values, strict=True)))
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
    action: str, arguments: Sequence[str], default: Step, implementations: Sequence[Implementation]
) -> Callable[..., Any]:
    """Build pluggy's caller of an action, with the step of the loop as the innermost implementation."""
    manager = _Caller(PROJECT)
    manager.add_hookspecs(generate_spec_class({action: arguments}, firstresult=True))
    # pluggy compares the names of the parameters with those of the spec.
    step = define_function(action, ("run", *arguments), default, DEFAULT_STEP)
    manager.register(_PluggyAdapter(action, step))
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
        # Frames below the function around the step of the loop belong to the loop, unless a further implementation
        # follows.
        if DEFAULT_STEP in frame.f_globals:
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


def as_step(function: Callable[..., Any], arguments: Sequence[str] = ("batch",)) -> Step:
    """Return a step of a custom loop as a function of the run and the arguments of its action.

    Raises:
        PointError: If the function does not have that number of required parameters.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty]
    if len(required) == len(arguments):
        return lambda _, *values: function(*values)
    if len(required) == len(arguments) + 1:
        return lambda run, *values: function(run, *values)
    name = getattr(function, "__name__", function)
    plain, with_run = ", ".join(arguments), ", ".join(("run", *arguments))
    raise PointError(
        f"{name}: invalid step, got {len(required)} required parameters. Define it as ({plain}) or ({with_run})."
    )
