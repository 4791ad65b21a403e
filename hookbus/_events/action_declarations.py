"""Declaration of actions on a bus, and the steps of the loop that they execute."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from hookbus._events.actions import (
    Step,
    as_step,
    bind_action,
    missing_step,
    parse_action,
)
from hookbus._events.manager import BusPluginManager
from hookbus._events.points import Point, check_name, is_action_spec
from hookbus._events.table import DispatchTable, EventRun, EventTable
from hookbus._utils.deprecations import read_deprecations
from hookbus.errors import PointError, suggest_names

P = ParamSpec("P")
R = TypeVar("R")


class ActionDeclarations:
    """Part of a bus that declares actions.

    Attributes:
        actions: Arguments of each action, by name.
    """

    pm: BusPluginManager
    table: EventTable
    calls: DispatchTable
    current: EventRun
    actions: Mapping[str, tuple[str, ...]]
    # Methods of the bus.
    discover_points: Callable[[Collection[str]], bool]
    invalidate: Callable[[], None]
    _check_declared: Callable[[Point], None]

    def _init_actions(self, actions: dict[str, tuple[str, ...]]) -> None:
        self.actions = self._arguments = actions
        # The function that has declared an action, if any, and the hook; "" for the loop.
        self._declared_by: dict[str, tuple[Callable[..., Any] | None, str]] = {}

    @overload
    def declare_action(self, action: str, args: Sequence[str] = ..., *, doc: str = ...) -> Callable[..., Any]: ...
    @overload
    def declare_action(self, action: Callable[Concatenate[Any, P], R]) -> Callable[P, R]: ...
    def declare_action(
        self, action: str | Callable[..., Any], args: Sequence[str] = (), *, doc: str = ""
    ) -> Callable[..., Any]:
        """Declare a custom action: a step that hooks replace or wrap by a method of the same name.

        Args:
            action: Function `sample(run, prompts)` that executes the action unless a hook replaces it, which determines
                all other arguments and the types of the returned function; or a method of a spec class, marked with
                `@actionspec`; or the name of the action. Without a function, `bus.action` sets the step.
            args: Names of the arguments in addition to `run`.
            doc: Description of the action.

        Returns:
            Function that executes the action: `images = sample(prompts)`. It remains valid when hooks are registered or
            unregistered.

        Raises:
            PointError: If a name is taken, reserved or not an identifier, or the function has no parameter `run`.
                Declaring the same function again is valid.
            RegistrationError: If a registered hook has a method with the name of the action, but not as its
                implementation.
        """
        if isinstance(args, str):  # also a sequence of names, of one letter each
            raise PointError(f"{action}: invalid `args`, got {args!r}. Pass args=({args!r},).")
        if isinstance(action, str):
            name, signature, source, step = action, _make_signature(args), None, None
        else:
            name, signature = parse_action(action)
            source, step, doc = action, None if is_action_spec(action) else action, inspect.getdoc(action) or ""
        if name not in self.actions:
            self._declare_action(name, tuple(signature.parameters), source, step)
        elif source is None or self._declared_by.get(name, (None, ""))[0] != source:
            self._declare_again(name, tuple(signature.parameters), source, step)
        return bind_action(name, lambda *values: self.calls.get(name)(self.current, *values), signature, doc)

    def action(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        """Make a step of a custom loop an action, which hooks may replace or wrap.

        Args:
            name: `"train_step"`, `"val_step"`, `"test_step"`, `"predict_step"`, or the name of a declared action.
            step: `step(batch)` or `step(run, batch)`; with the arguments of a declared action instead of `batch`.

        Returns:
            Function of the batch. It remains valid when hooks are registered or unregistered.

        Raises:
            PointError: If the action does not exist or `step` takes other arguments.
        """
        if name not in self.actions and not (self.discover_points({name}) and name in self.actions):
            raise PointError(
                f"Unknown action {name!r}.{suggest_names(name, self.actions)} Declare custom actions with "
                "bus.declare_action."
            )
        self.table.steps[name] = as_step(step, self.actions[name])
        self.invalidate()
        # Looked up per call, because registration recompiles the action.
        return lambda *arguments: self.calls.get(name)(self.current, *arguments)

    def _release_actions(self, hook: str) -> None:
        """Remove the steps of a hook that leaves from the actions that it has declared."""
        for name, (source, owner) in self._declared_by.items():
            if owner == hook and self.table.steps[name] is source:
                self.table.steps[name] = missing_step(name, self.actions[name])

    def _declare_again(
        self, name: str, args: tuple[str, ...], source: Callable[..., Any] | None, step: Step | None
    ) -> None:
        """Let a hook declare its action again, such as in its next run, or replace that of a hook that has left.

        Raises:
            PointError: If the action belongs to the loop or to another hook, or has other arguments.
        """
        caller, (_, owner) = self.pm.members.find_calling_hook(), self._declared_by.get(name, (None, ""))
        if not owner or (owner != caller and owner in self.pm.members) or args != self.actions[name]:
            raise PointError(
                f"{name!r}: the action is already declared. Choose another name, or pass its step to bus.action."
            )
        self._declared_by[name] = source, caller
        self.table.steps[name] = step or missing_step(name, args)
        self.invalidate()

    def _declare_action(
        self, name: str, args: tuple[str, ...], source: Callable[..., Any] | None, step: Step | None = None
    ) -> None:
        """Declare an action.

        Args:
            name: Name of the action.
            args: Names of its arguments.
            source: Function that declares it; None if it is declared by its name.
            step: Step that is executed unless a hook replaces it. Default: one that raises an error.
        """
        if name in self.table.points:
            raise PointError(f"{name!r}: a point has this name. Choose another name for the action.")
        deprecations = read_deprecations(source) if source is not None else ()
        self._check_declared(Point(name, args, None, "", ("Any",) * len(args), deprecations))
        updated = self.pm.inspect_for({}, {name: args}, deprecations)
        self.pm.add_specs({name: args}, firstresult=True)
        self._arguments[name], self._declared_by[name] = args, (source, self.pm.members.find_calling_hook())
        self.table.steps[name] = step or missing_step(name, args)
        self.pm.update(updated)
        self.invalidate()


def _make_signature(args: Sequence[str]) -> inspect.Signature:
    """Return the signature of an action without `run`.

    Raises:
        PointError: If an argument is invalid or duplicated.
    """
    for name in args:
        check_name(name)
    if len(set(args)) < len(args):
        raise PointError(f"args: duplicate argument, got {tuple(args)!r}. Name each argument once.")
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in args])
