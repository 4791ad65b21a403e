"""Synchronization of requests across ranks.

Hooks may make requests on one rank only: a signal is received by one process, or the loss is infinite on one. At each
boundary the ranks therefore compare their pending requests in one small all-reduce. If the requests differ, they are
gathered, and every rank processes all of them. Nothing is compared if no hook can make requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from hookbus._run.point_counters import PointCounters
from hookbus._utils.packages import package_label
from hookbus._utils.redaction import redact
from hookbus.errors import RankError, RequestError
from hookbus.hook import Hook
from hookbus.lifecycle import POINTS

if TYPE_CHECKING:
    from hookbus._events.schedules import Schedule
    from hookbus._run.requests import Request
    from hookbus._run.run import Run

ITERATION = "after_train_iter"
SKIPPABLE = ("before_train_iter", "after_forward")
"""Points at which a hook may request to skip the iteration."""


@dataclass(frozen=True, slots=True)
class _RankRequests:
    """Boundary that a rank has reached, and its pending requests, in which savers are represented by their names."""

    point: str
    iteration: int
    requests: list[Request]


class RequestSync:
    """Requests of a run, synchronized across ranks.

    Attributes:
        active: Whether ranks synchronize requests.
        every: Number of iterations between two synchronizations. Ranks also synchronize at the end of each epoch and of
            the training.
        skipping: Points after which ranks synchronize whether to skip the iteration.
        interrupted: Whether this rank received Ctrl-C since the last synchronization.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.active = self.interrupted = self._begun = False
        self.every = 1
        self.skipping: frozenset[str] = frozenset()
        self._schedules: list[tuple[Schedule, PointCounters]] = []

    def begin(self) -> None:
        """Determine on all ranks whether any hook of the run can make requests. A collective call."""
        run = self._run
        if run.ranks.world_size == 1:
            return
        counts_tokens = run.clock.counts_tokens
        makes_requests = any(map(may_request, run.bus.hooks.values()))
        own = makes_requests, [point for point in SKIPPABLE if self._can_skip(point)], counts_tokens
        # Gathered: a hook that is active on rank 0 only makes every rank synchronize.
        gathered = run.ranks.all_gather("hooks that make requests", own)
        if any(counts != counts_tokens for _, _, counts in gathered):
            raise RankError("batch_tokens: some ranks count tokens and others do not. Pass it on every rank.")
        # The tokens of all ranks are summed in the synchronizations of requests.
        self.active, self._begun = counts_tokens or any(can for can, _, _ in gathered), True
        self.skipping = frozenset(point for _, points, _ in gathered for point in points)
        counters = PointCounters(run.clock, POINTS[ITERATION])
        listeners = [listener for listener in run.bus.table.listeners(ITERATION, run) if may_request(listener.plugin)]
        # A condition may differ between ranks, so its requests wait for the next synchronization.
        self._schedules = [
            (listener.schedule, counters)
            for listener in listeners
            if listener.schedule is not None and not listener.schedule.reads_run()
        ]
        # The compiled events contain calls of the synchronization, depending on `active` and `skipping`.
        run.bus.invalidate()

    def check_request(self, requester: str) -> None:
        """Check that a request can be synchronized.

        Raises:
            RequestError: If the ranks do not synchronize requests, because no hook declares any.
        """
        # Without this error the ranks would diverge: only this rank stops or validates.
        if self._begun and not self.active and requester in self._run.bus.hooks:
            raise RequestError(
                f"hook {requester!r} made a request, but requests are not synchronized across ranks, because no hook "
                "declares any. Set makes_requests = True in its class, and do not set observer = True."
            )

    def check_late(self, name: str, hook: object) -> None:
        """Check that the ranks synchronize what a hook that is registered during the run may request.

        Raises:
            RequestError: If the hook may skip iterations, and no hook that was registered at the start may.
        """
        if not self._begun or not getattr(hook, "skips_iterations", False):
            return
        if unsynchronized := [point for point in SKIPPABLE if self._can_skip(point) and point not in self.skipping]:
            raise RequestError(
                f"hook {name!r} may skip iterations at {' and '.join(unsynchronized)}, which the ranks do not "
                "synchronize, because no hook declared it when the run started. Register the hook before the run."
            )

    def sync_at_boundary(self, point: str) -> bool:
        """Synchronize the pending requests at a boundary. A collective call.

        Returns:
            Whether the pending requests can be processed at this boundary.

        Raises:
            RankError: If another rank has failed, or has reached another point.
        """
        run = self._run
        # A failed run makes no collective calls: the other ranks may have ended.
        if not self.active or run.exception is not None:
            return True
        if point == ITERATION and not self._is_due():
            return False
        self.admit_interrupt()
        own = _RankRequests(
            point, run.iters_done, [_replace_saver(request, run.bus.pm.get_name) for request in run.queue.waiting]
        )
        if not self._requests_match(own):
            self._merge(own)
        return True

    def admit_interrupt(self) -> None:
        """Enqueue the stop request of a received Ctrl-C."""
        if self.interrupted:
            self.interrupted = False
            self._run.request_interrupt()

    def sync_skip(self) -> None:
        """Skip the iteration on every rank if a hook of any rank requested it. A collective call."""
        import torch

        run = self._run
        # On one rank only, the gradient all-reduce of the other ranks would block.
        skip = torch.tensor(int(run.should_skip_iter))
        run.should_skip_iter = bool(run.ranks.all_reduce("skip the iteration", skip, "max"))

    # -- implementation ----------------------------------------------------------------------

    def _can_skip(self, point: str) -> bool:
        """Return whether a listener of a point may request to skip the iteration."""
        listeners = self._run.bus.table.listeners(point, self._run)
        return any(getattr(listener.plugin, "skips_iterations", False) for listener in listeners)

    def _is_due(self) -> bool:
        """Return whether ranks synchronize after this iteration.

        Ranks synchronize every N iterations, and if a listener that can make requests was due by schedule. The result
        depends on the clock and on schedules only, which are equal on all ranks.
        """
        clock = self._run.clock
        if clock.iters_done % self.every == 0 or clock.limit_reached:
            return True
        return any(schedule.due(counters) for schedule, counters in self._schedules)

    def _requests_match(self, own: _RankRequests) -> bool:
        """Return whether all ranks have equal pending requests, and synchronize the elapsed seconds of schedules."""
        import torch

        clock = self._run.clock
        # Not `hash`, which is randomized per process; 7 bytes fit into an int64 with both signs.
        digest = int.from_bytes(hashlib.blake2b(repr(own).encode(), digest_size=7).digest())
        # One all-reduce: the maxima of a digest and of its negative are opposite only if all digests are equal.
        values = [digest, -digest, int(clock.seconds), *self._get_token_slots()]
        reduced = self._run.ranks.all_reduce("requests", torch.tensor(values), "max").tolist()
        greatest, least, clock.synced_seconds, *tokens = reduced
        if tokens:
            clock.add_tokens(tokens)
        return bool(greatest == -least)

    def _get_token_slots(self) -> list[int]:
        """Return one number per rank: the new tokens of this rank, and 0 for the others, so that a maximum is a sum."""
        clock, ranks = self._run.clock, self._run.ranks
        if not clock.counts_tokens:
            return []
        return [clock.tokens.own if rank == ranks.rank else 0 for rank in range(ranks.world_size)]

    def _merge(self, own: _RankRequests) -> None:
        """Replace the pending requests by those of all ranks, in the order of the ranks. A collective call.

        Raises:
            RankError: If the ranks have reached different points.
        """
        run = self._run
        gathered = run.ranks.all_gather("requests", own)
        if len({(entry.point, entry.iteration) for entry in gathered}) > 1:
            points = [f"rank {rank}: {entry.point}, iteration {entry.iteration}" for rank, entry in enumerate(gathered)]
            raise RankError(
                f"The ranks have reached different points: {'; '.join(points)}. Make the training loaders of all ranks "
                "yield the same number of batches, and emit the same events on every rank."
            )
        merged: list[Request] = []
        for rank, entry in enumerate(gathered):
            for request in entry.requests:
                is_of_all = all(request in other.requests for other in gathered)
                # A request of all ranks is added once; the reason of any other request names its rank.
                marked = request if is_of_all else replace(request, reason=f"{request.reason} on rank {rank}".lstrip())
                merged += [] if is_of_all and request in merged else [marked]
        run.queue.waiting = [_replace_saver(request, run.bus.pm.get_plugin) for request in merged]


def sync_run_identity(run: Run) -> None:
    """Broadcast the ID and the seed of the run from rank 0, and check that all ranks have the same hooks.

    Raises:
        RankError: If the hooks differ. The message contains the first difference.
    """
    if run.ranks.world_size == 1:
        return
    run.id, run.seed = run.ranks.broadcast("id and seed", (run.id, run.seed))
    own = [_describe_hook(name, hook) for name, hook in run.bus.hooks.items()]
    for rank, other in enumerate(run.ranks.all_gather("hooks", own)):
        if other != own:
            raise RankError(_difference_message(run.ranks.rank, own, rank, other))


def may_request(plugin: object) -> bool:
    """Return whether a hook may make requests; plugins that are not derived from `Hook` may."""
    return bool(getattr(plugin, "makes_requests", True)) and not getattr(plugin, "observer", False)


def _replace_saver(request: Request, look_up: Callable[[Any], Any]) -> Request:
    """Return a request with its saver replaced by the result of `look_up`, to send it to other ranks by name."""
    saver = request.details.get("saver")
    return request if saver is None else replace(request, details={**request.details, "saver": look_up(saver)})


def _describe_hook(name: str, hook: object) -> str:
    """Return a description of a hook, equal on all ranks for equal hooks and settings."""
    text = f"{name}: {type(hook).__name__} of {package_label(hook)}"
    if not isinstance(hook, Hook):
        return text
    priority = hook.priority if hook.config.priority is None else hook.config.priority
    fields = hook.config.model_dump(exclude_unset=True, exclude={"name", "priority"})
    # Through JSON: values of other types, such as functions, are replaced by their names.
    settings = redact(json.loads(json.dumps(fields, default=_get_name)))
    return ", ".join([text, f"priority {int(priority)}", *(f"{key}={value!r}" for key, value in settings.items())])


def _get_name(value: object) -> str:
    """Return the name of a function, a class or the type of an object; its `repr` may contain an address."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _difference_message(rank: int, own: list[str], other_rank: int, other: list[str]) -> str:
    """Return the message for the first hook that differs between two ranks."""
    pairs = enumerate(zip_longest(own, other, fillvalue="none"), 1)
    number, pair = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    both = sorted([f"  rank {rank}: {pair[0]}", f"  rank {other_rank}: {pair[1]}"])
    message = (
        f"The hooks of the ranks differ at position {number}. Register the same hooks in the same order on every rank:"
    )
    return "\n".join([message, *both])
