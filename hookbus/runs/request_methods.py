"""What hooks ask of a run: validations, saves, stops. The bus acts, see `hookbus.requests`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._running import asking
from hookbus.errors import RequestError
from hookbus.requests import Kind, Outcome, Queue, Request, Saver

if TYPE_CHECKING:
    from hookbus.bus import HookBus
    from hookbus.clock import Clock
    from hookbus.dispatch.brackets import Brackets
    from hookbus.runs.decisions import Decisions
    from hookbus.runs.services import Services
    from hookbus.runs.training_data import TrainingData
    from hookbus.runs.validations import Validations

__all__ = ["RequestMethods"]


class RequestMethods:
    """The part of a run that takes requests.

    Attributes:
        queue: the requests that wait, and the history of all.
        pending: whether something waits to be settled.
        stops: the requests on which the run agreed to stop.
        should_skip_iter: whether a hook asked not to train on this micro-batch; a loop of one's own looks at it after
            `before_train_iter` and after `after_forward`.
    """

    __slots__ = ("pending", "queue", "should_skip_iter", "stops")
    bus: HookBus
    clock: Clock
    queue: Queue
    stops: list[Request]
    brackets: Brackets
    training_data: TrainingData
    decisions: Decisions
    services: Services
    validations: Validations
    exception: BaseException | None
    pending: bool
    validating: bool
    should_skip_iter: bool

    def request_validation(self, reason: str = "") -> None:
        """Ask for a validation after this event.

        Raises:
            RequestError: a validation is going on, or the run has no way to validate.
        """
        if self.validating:
            raise RequestError(f"{self._asker()} asked for a validation inside a validation.")
        self.validations.evaluator("val")
        self._ask(Kind.VALIDATE, reason)

    def request_save(self, reason: str = "", *, saver: Saver | None = None, **details: Any) -> None:
        """Ask for a checkpoint at the next boundary.

        Args:
            reason: why, for people.
            saver: who writes it; default the checkpoint hook.
            details: for the saver.

        Raises:
            RequestError: nobody here writes checkpoints.
        """
        saver = saver or self.services.get("saver")
        if saver is None:
            raise RequestError(
                f"{self._asker()} asked for a checkpoint, but no hook here writes any. Add the checkpoint hook "
                "(pip install hookbus-checkpoint)."
            )
        self._ask(Kind.SAVE, reason, saver=saver, **details)

    def request_stop(self, reason: str = "", *, outcome: Outcome = "stopped") -> None:
        """Ask to end the run at the next boundary.

        Args:
            reason: why, for people.
            outcome: what the run will say of itself: "stopped", "preempted" or "interrupted".
        """
        self._ask(Kind.STOP, reason, outcome=outcome)

    def request_abort(self, reason: str = "") -> None:
        """Request the end of the run because its weights are broken: nothing is validated or saved from here on.

        The outcome of the run is "aborted". Existing checkpoints are not modified.

        Args:
            reason: Reason for the log.
        """
        self._ask(Kind.STOP, reason, outcome="aborted")

    def interrupt(self) -> None:
        """Ctrl-C: the run is to end at the next boundary. Called by the signal's handler, in whatever is running."""
        if self.decisions.active:
            self.decisions.interrupted = True  # the other ranks hear of it at the boundary, and not before
        else:
            self.interrupt_now()

    def interrupt_now(self) -> None:
        """Ctrl-C is a request from here on."""
        self._ask(Kind.STOP, "", by="Ctrl-C", outcome="interrupted")

    def request_stop_epoch(self, reason: str = "") -> None:
        """Ask to end this epoch, as if its loader had ended. The epoch counts."""
        self._ask(Kind.STOP_EPOCH, reason)

    def request_skip_iter(self, reason: str = "") -> None:
        """Ask, at `before_train_iter` or `after_forward`, not to train on this micro-batch: it adds no gradients."""
        self.should_skip_iter = True
        self.queue.history.append(self._request(Kind.SKIP_ITER, reason, self._asker(), {}))

    @property
    def should_stop(self) -> bool:
        """Whether the run is to end. A loop with ranges of its own asks this once per iteration and epoch."""
        if asking() is None:
            if self.brackets.closing:
                self.brackets.close_epoch()
            if self.queue and not self.decisions.active:
                self.agree_to_stop(self.queue.take(Kind.STOP))
        return bool(self.stops) or self.clock.limit_reached

    @property
    def should_stop_epoch(self) -> bool:
        """Whether the epoch is to end here."""
        return self.training_data.leaving_epoch or self.should_stop

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended the run: it has agreed to stop."""
        return any(request.details.get("outcome") == "interrupted" for request in self.stops)

    @property
    def aborted(self) -> bool:
        """Whether the run is to end because its weights are broken."""
        requests = [*self.stops, *self.queue.waiting]
        return any(request.details.get("outcome") == "aborted" for request in requests)

    @property
    def resumable(self) -> bool:
        """Whether what is not complete is left to the run that goes on from a checkpoint.

        So it is where this one was stopped before its limit and somebody writes checkpoints. Then nothing is recorded
        of a part of an interval or an epoch: the checkpoint holds it, and the rest is still to come.
        """
        if self.aborted:
            return False
        return bool(self.stops) and not self.clock.at_limit and self.services.get("saver") is not None

    @property
    def stop_reasons(self) -> list[str]:
        """Who stopped the run and why, sorted by name."""
        return [str(request) for request in self.stops]

    def agree_to_stop(self, stops: list[Request]) -> None:
        """The run will end. Called by the settlement."""
        if stops:
            self.stops += stops
            self.clock.cut_epoch()
        if self.interrupted:
            self.bus.changed()  # a loop of one's own is left if it goes on all the same

    def leave_epoch(self) -> None:
        """The epoch will end. Called by the settlement."""
        self.training_data.leaving_epoch = True

    def _ask(self, kind: Kind, reason: str, *, by: str | None = None, **details: Any) -> None:
        request = self._request(kind, reason, by or self._asker(), details)
        self.decisions.check(request.by)
        if self.exception is not None:
            self.report_dropped(request)
            return
        self.queue.add(request)
        self.pending = True

    def _request(self, kind: Kind, reason: str, by: str, details: Mapping[str, Any]) -> Request:
        clock = self.clock
        return Request(kind, by, reason, clock.epoch, clock.iter, clock.steps_done, details)

    def report_dropped(self, request: Request) -> None:
        """Say that a request will not be met, because the run has failed."""
        self.services.logger.warning(
            "The run ended before this was done: %s asked for by %s", request.kind.value, request
        )

    def _asker(self) -> str:
        listener = asking()
        return listener.hook if listener is not None else self.bus.pm.members.running_in(sys._getframe(1)) or "loop"
