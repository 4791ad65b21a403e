"""Methods with which hooks request validations, saves and stops; see `hookbus._run.requests` for the processing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookbus._events.call_stack import current_listener
from hookbus._run.requests import Outcome, Request, RequestKind, RequestQueue
from hookbus._run.services import ServiceMethods
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.errors import RequestError
from hookbus.needs import REQUESTS, HostRequest

if TYPE_CHECKING:
    from hookbus.lifecycle import Mode
    from hookbus.metrics.results import Metrics


class RequestMixin(ServiceMethods):
    """Part of a run that accepts requests.

    Attributes:
        queue: Pending requests, and the history of processed requests.
    """

    __slots__ = ("ended_at", "pending", "queue", "should_skip_iter", "stops")
    queue: RequestQueue
    stops: list[Request]
    ended_at: int | None
    exception: BaseException | None
    mode: Mode
    pending: bool
    should_skip_iter: bool
    validating: bool
    # Without their types, which would make the modules of the run depend on each other.
    boundary_state: Any
    clock: Any
    replacements: Any
    request_sync: Any
    signals: Any
    training_data: Any
    trial: Any
    validations: Any
    host: Any

    def request_validation(self, reason: str = "") -> None:
        """Request a validation after this event.

        Args:
            reason: Reason for the log.

        Raises:
            RequestError: If a validation is in progress, or the run has no validation function.
        """
        if self.validating:
            raise RequestError(
                f"{self._requester()} requested a validation during a validation. Request it after `after_val`."
            )
        if not self.validations.is_available("val"):
            self.check_host("validation")
            self.validations.get_evaluator("val")
        self._enqueue(RequestKind.VALIDATE, reason)

    def request_results(self, deliver: Callable[[Metrics], object]) -> None:
        """Request the results of the validation or test in progress, for a decision that depends on them.

        The argument `metrics` of `after_val` lacks the values that other hooks log at the same point.

        Args:
            deliver: Function that is called with the complete results after all listeners of `after_val` or
                `after_test`, while averaged weights are still applied. It may make requests.

        Raises:
            RequestError: If no validation or test is in progress.
        """
        if not self.validating:
            raise RequestError(
                f"{self._requester()} requested the results of a validation, but none is in progress. Request them "
                "between before_val and after_val."
            )
        self.validations.result_requests.append((self._requester(), deliver))

    def request_save(self, reason: str = "", *, saver: CheckpointSaver | None = None, **details: Any) -> None:
        """Request a checkpoint at the next boundary.

        In `on_exception`, the checkpoint contains the state of the last iteration boundary. It is refused if an
        optimizer has stepped since.

        Args:
            reason: Reason for the log.
            saver: Object that writes the checkpoint; default: the checkpoint hook.
            details: Arguments for the saver.

        Raises:
            RequestError: If the run only evaluates, or no hook writes checkpoints.
        """
        if self.mode != "train":
            raise RequestError(
                f"{self._requester()} requested a checkpoint in a run of mode {self.mode!r}, which writes none. "
                "Request it in a training."
            )
        saver = saver or self.get("checkpoint_saver")
        if saver is None and self.host is not None:
            self.check_host("save")
        elif saver is None:
            raise RequestError(
                f"{self._requester()} requested a checkpoint, but no hook writes checkpoints. Add the checkpoint hook "
                "(pip install hookbus-checkpoint)."
            )
        self._enqueue(RequestKind.SAVE, reason, saver=saver, **details)

    def request_stop(self, reason: str = "", *, outcome: Outcome = "stopped") -> None:
        """Request the end of the run at the next boundary.

        Args:
            reason: Reason for the log.
            outcome: Outcome of the run: "stopped", "preempted" or "interrupted".
        """
        self.check_host("stop")
        self._enqueue(RequestKind.STOP, reason, outcome=outcome)

    def request_abort(self, reason: str = "") -> None:
        """Request the end of the run because its weights are corrupted: nothing is validated or saved afterwards.

        The outcome of the run is "aborted". Existing checkpoints are not modified.

        Args:
            reason: Reason for the log.
        """
        self.check_host("stop")
        self._enqueue(RequestKind.STOP, reason, outcome="aborted")

    def interrupt(self) -> None:
        """Request the end of the run after Ctrl-C. Called by the signal handler, at any line of the program."""
        if self.request_sync.active:
            # The queue of a rank must not change while ranks compare their queues: enqueued at the boundary.
            self.request_sync.interrupted = True
        else:
            self.request_interrupt()

    def receive_signal(self, request: Callable[[], object]) -> None:
        """Record a signal of the operating system; called by its handler, at any line of the program.

        The loss of a worker process of a loader, which the same signal may have ended, is not an error from then on.

        Args:
            request: Makes the requests of this signal, unless they have been made before. Called if a loader fails
                because of the signal.
        """
        self.signals.receive(request)

    def request_interrupt(self) -> None:
        """Enqueue the stop request of Ctrl-C."""
        self._enqueue(RequestKind.STOP, "", requested_by="Ctrl-C", outcome="interrupted")

    def request_stop_epoch(self, reason: str = "") -> None:
        """Request the end of this epoch, which counts as complete.

        Args:
            reason: Reason for the log.
        """
        self.check_host("stop_epoch")
        self._enqueue(RequestKind.STOP_EPOCH, reason)

    def request_skip_iter(self, reason: str = "") -> None:
        """Request, at `before_train_iter` or `after_forward`, to skip this micro-batch: it adds no gradients.

        Args:
            reason: Reason for the log.
        """
        self.check_host("skip")
        self.should_skip_iter = True
        if self.trial is not None:
            return  # it ends the trial step; there is no iteration to skip
        self.replacements.discard()
        self.queue.history.append(self._make_request(RequestKind.SKIP_ITER, reason, self._requester(), {}))

    @property
    def should_stop(self) -> bool:
        """Whether the run is to end. A custom loop with its own ranges checks it once per iteration and epoch.

        Reading it has no effect. A request takes effect at the next boundary, or in `settle()`.
        """
        return bool(self.stops) or self.clock.limit_reached

    @property
    def should_stop_epoch(self) -> bool:
        """Whether the epoch is to end after this iteration."""
        return self.training_data.leaving_epoch or self.should_stop

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has stopped the run."""
        return any(request.details.get("outcome") == "interrupted" for request in self.stops)

    @property
    def aborted(self) -> bool:
        """Whether the run ends because its weights are corrupted."""
        return bool(self.abort_reasons)

    @property
    def abort_reasons(self) -> list[str]:
        """Name of the hook and reason of each request to abort the run."""
        requests = [*self.stops, *self.queue.waiting]
        return [str(request) for request in requests if request.details.get("outcome") == "aborted"]

    @property
    def is_captured(self) -> bool:
        """Whether the run ended within an epoch, or without epochs, at its latest iteration.

        The last checkpoint was saved at that boundary. The loop may have executed code since, which the resumed run
        executes again.
        """
        clock = self.clock
        if self.ended_at is None or not clock.ends_within_epoch:
            return False
        return bool(clock.epoch_truncated) or self.ended_at == clock.iters_done

    @property
    def resumable(self) -> bool:
        """Whether incomplete epochs and intervals are left to a run that resumes from the checkpoint.

        True if the run was stopped before its limit and a hook writes checkpoints. Nothing is then logged for a part of
        an interval or epoch: the checkpoint contains the values, and the resumed run completes them.
        """
        if self.aborted:
            return False
        return bool(self.stops) and not self.clock.is_at_limit and self.get("checkpoint_saver") is not None

    @property
    def stop_reasons(self) -> list[str]:
        """Name of the hook and reason of each stop request, sorted by name."""
        return [str(request) for request in self.stops]

    def confirm_stop(self, stops: list[Request]) -> None:
        """Stop the run. Called when requests are processed."""
        if stops:
            self.stops += stops
            if self.host is None or self.host.capabilities.requests.get("stop") != "epoch":
                self.clock.truncate_epoch()
            if self.host is not None:
                self.host.stop(self.stop_reasons)
        if self.interrupted:
            self.bus.invalidate()  # recompiled events raise `StopLoop` in a custom loop that does not stop

    def check_host(self, request: HostRequest) -> None:
        """Check that the host of the run, if there is one, carries out a request.

        Raises:
            RequestError: If it does not.
        """
        if self.host is not None and not self.host.capabilities.honors(request):
            raise RequestError(
                f"{self._requester()} requested a {REQUESTS[request]}, which {self.host.capabilities.host} does not "
                "carry out. Disable the setting of the hook that requests it."
            )

    def _enqueue(self, kind: RequestKind, reason: str, *, requested_by: str | None = None, **details: Any) -> None:
        """Add a request to the queue, or drop it with a warning if the run has failed."""
        request = self._make_request(kind, reason, requested_by or self._requester(), details)
        if self.trial is not None and requested_by is None:  # Ctrl-C stops the run also during a trial
            self.trial.discard(f"{kind.value} requested by {request}")
            return
        self.request_sync.check_request(request.requested_by)
        if self.exception is not None and not (kind is RequestKind.SAVE and self.boundary_state.accepts_saves):
            self.warn_dropped(request)
            return
        self.queue.waiting.append(request)
        self.pending = True

    def _make_request(self, kind: RequestKind, reason: str, requested_by: str, details: Mapping[str, Any]) -> Request:
        """Return a request with the current counts of the clock."""
        clock = self.clock
        return Request(kind, requested_by, reason, clock.epoch, clock.iter, clock.steps_done, details)

    def warn_dropped(self, request: Request) -> None:
        """Log a warning for a request that is not processed because the run has failed."""
        self.logger.warning(
            "The run ended before a request was processed: %s, requested by %s", request.kind.value, request
        )

    def _requester(self) -> str:
        """Return the name of the hook that makes a request, or "loop"."""
        listener = current_listener()
        # Outside an event the caller may still be a method of a hook, such as a callback: search the call stack.
        return listener.hook if listener is not None else self.bus.pm.members.hook_in_frame(sys._getframe(1)) or "loop"
