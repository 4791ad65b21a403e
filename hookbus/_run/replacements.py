"""The batch and the loss of the current iteration that hooks have replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hookbus._events.call_stack import current_point, in_event
from hookbus.errors import HookError, LoopError, RequestError

Kind = Literal["batch", "loss"]
POINTS: dict[Kind, str] = {"batch": "before_train_iter", "loss": "after_forward"}
"""Point at which each of them is replaced."""


@dataclass(slots=True)
class Replacement:
    """Value that a hook has put in place of that of the loop.

    Attributes:
        value: New batch or loss.
        hook: Instance name of the hook.
        iteration: Index of the iteration.
        is_read: Whether a listener has read it, to compute a further replacement.
    """

    value: Any
    hook: str
    iteration: int
    is_read: bool = False


class Replacements:
    """Replacements of the current iteration."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._entries: dict[Kind, Replacement] = {}

    @property
    def is_pending(self) -> bool:
        """Whether the loop has not read all of them."""
        return bool(self._entries)

    def replace(self, kind: Kind, value: Any, hook: str) -> None:
        """Replace the batch or the loss; no effect in an iteration that is skipped.

        Raises:
            RequestError: If this is not the point at which it is replaced.
            HookError: If another hook has replaced it, and its value was not read.
        """
        run, point = self._run, current_point(self._run)
        if point != POINTS[kind]:
            place = f"at {point}" if point else "outside of an event"
            raise RequestError(f"run.replace_{kind}: called {place}. Call it at {POINTS[kind]}.")
        if run.should_skip_iter:
            return
        earlier = self._find(kind)
        if earlier is not None and earlier.hook != hook and not earlier.is_read:
            raise HookError(
                f"run.replace_{kind}: {earlier.hook!r} has replaced the {kind} of this iteration, got a second one of "
                f"{hook!r}. Compute it from run.resolve_{kind}({kind})."
            )
        self._entries[kind] = Replacement(value, hook, run.clock.iter)
        run.pending = True  # the end of the iteration checks that the loop has read it

    def resolve(self, kind: Kind, value: Any) -> Any:
        """Return the replacement, or `value` if there is none. The loop reads it once, listeners any number of times.

        Args:
            kind: "batch" or "loss".
            value: Batch or loss of the loop.
        """
        entry = self._find(kind)
        if entry is None:
            return value
        if in_event(self._run):
            entry.is_read = True
        else:
            del self._entries[kind]
        return entry.value

    def discard(self) -> None:
        """Discard the replacements of an iteration that is skipped."""
        self._entries.clear()

    def check_read(self) -> None:
        """Check, at the end of an iteration, that the loop has read all replacements.

        Raises:
            LoopError: If it has not, so that they had no effect.
        """
        entries = {kind: entry for kind in self._entries if (entry := self._find(kind)) is not None}
        self.discard()
        for kind, entry in entries.items():
            clock = self._run.clock
            raise LoopError(
                f"run.replace_{kind}: {entry.hook!r} has replaced the {kind} of iteration {clock.current('iter')}, "
                f"epoch {clock.current('epoch')}, but the loop has used its own. Add `{kind} = "
                f"run.resolve_{kind}({kind})` to the loop, after {POINTS[kind]}."
            )

    def _find(self, kind: Kind) -> Replacement | None:
        """Return a replacement of the current iteration; one of an iteration that has failed is ignored."""
        entry = self._entries.get(kind)
        return entry if entry is not None and entry.iteration == self._run.clock.iter else None
