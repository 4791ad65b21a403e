"""Hooks that take part in a run, and the opening events that they have received.

A hook is opened by `before_run`. Only hooks that were opened receive `on_exception`, `after_run` and `cleanup`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hookbus._events.ordering import Listener

CLOSING_POINTS = frozenset({"on_exception", "after_run", "cleanup"})
"""Points that a hook receives only if it was opened."""

WITHIN: Mapping[str, str] = {
    **dict.fromkeys(("before_train_iter", "after_forward", "after_backward", "after_train_iter"), "iteration"),
    **dict.fromkeys(("before_optimizer_step", "after_optimizer_step", "train_step"), "iteration"),
    **{f"{side}_{kind}{part}": "evaluation" for side in ("before", "after") for kind in ("val", "test", "predict")
       for part in ("", "_epoch", "_iter")},
    "val_step": "evaluation",
    "test_step": "evaluation",
    "predict_step": "evaluation",
}  # fmt: skip
"""Points and actions that a hook does not receive before the end of the iteration or evaluation it is registered in."""


class Participants:
    """Hooks that take part in a run.

    Attributes:
        brackets: Open points without `before_`, outermost first; empty before and after the run.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        # Each yields True once, for the only `cleanup` of a hook.
        self._openings: dict[str, Iterator[bool]] = {}
        self.brackets: list[str] = []
        self._waiting: dict[str, set[str]] = {"iteration": set(), "evaluation": set()}

    # -- called at the points ----------------------------------------------------------------

    def begin(self) -> None:
        """Begin to open the hooks; called before the listeners of `before_run`."""
        self.open("run")
        for name, member in list(self._run.bus.pm.members.items()):
            if "before_run" not in member.implementations:
                self.add(name)

    def open(self, bracket: str) -> None:
        """Record an opening event; called before its listeners."""
        self.close(bracket)
        self.brackets.append(bracket)

    def close(self, bracket: str) -> None:
        """Record a closing event, which also closes everything inside; called before its listeners."""
        if bracket in self.brackets:
            del self.brackets[self.brackets.index(bracket) :]

    def has_waiting(self, place: str) -> bool:
        """Return whether a hook was registered within the current iteration or evaluation."""
        return bool(self._waiting[place])

    def end_waiting(self, place: str) -> None:
        """Let the hooks that were registered within an iteration or an evaluation take part from its end on."""
        if self._waiting[place]:
            self._waiting[place].clear()
            self._run.bus.invalidate()

    # -- called by the bus -------------------------------------------------------------------

    def receives(self, hook: str, target: str) -> bool:
        """Return whether a hook takes part in the events of a point, or in an action."""
        if target in CLOSING_POINTS:
            return hook in self._openings or not self._run.is_running
        return target not in WITHIN or hook not in self._waiting[WITHIN[target]]

    def record_opening(self, listener: Listener) -> Callable[..., Any]:
        """Return the function of a listener; at `before_run` and `cleanup`, one that opens and closes its hook."""
        if listener.point == "before_run":
            # First: a hook whose `before_run` fails may have files to close.
            return _call_after(functools.partial(self.add, listener.hook), listener.call)
        opening = self._openings.get(listener.hook)
        if listener.point != "cleanup" or opening is None:
            return listener.call
        # A hook that is unregistered while the run ends may have received `cleanup`, or receives it in this event.
        return _call_after(functools.partial(next, opening, False), listener.call)

    def remove(self, name: str) -> None:
        """Remove a hook that was unregistered."""
        self._openings.pop(name, None)
        for names in self._waiting.values():
            names.discard(name)

    # -- registration during the run -----------------------------------------------------------

    def add(self, name: str) -> None:
        """Add a hook, unless it takes part already; called before it is opened."""
        self._openings.setdefault(name, iter([True]))

    def wait(self, name: str) -> None:
        """Exclude a hook from the rest of the iteration and of the evaluation that it was registered in."""
        run = self._run
        places = {"iteration": run.clock.iter_open, "evaluation": run.validating}
        for place in (place for place, is_open in places.items() if is_open):
            self._waiting[place].add(name)
        run.bus.invalidate()


def _call_after(first: Callable[[], bool | None], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one before `call`, which is left out if that returns False."""

    @functools.wraps(call)
    def execute(*args: Any, **kwargs: Any) -> None:
        if first() is not False:
            call(*args, **kwargs)

    return execute
