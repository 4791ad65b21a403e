"""What hooks ask for, made the same on every rank.

Hooks of one rank may ask for what those of the others do not: the signal came to one of them, or the loss is infinite
on one. So at each boundary the ranks compare, in one small vector, what waits there. Where it differs they tell each
other, and every rank goes on with all of it. Nothing is compared where no hook can ask for anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from hookbus._packages import package_of
from hookbus.errors import RankError, RequestError
from hookbus.hook import Hook
from hookbus.lifecycle import POINTS
from hookbus.moment import PointMoment

if TYPE_CHECKING:
    from hookbus.requests import Request
    from hookbus.run import Run
    from hookbus.when import Schedule

__all__ = ["Decisions", "begin_together"]

ITERATION = "after_train_iter"
SKIPPABLE = ("before_train_iter", "after_forward")
"""Points at which a hook may ask to leave the iteration out."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a rank tells the others.

    Attributes:
        point, iteration: where it is.
        requests: what waits there; the saver stands in them under its name.
    """

    point: str
    iteration: int
    requests: list[Request]


class Decisions:
    """The requests of a run, as all ranks see them.

    Args:
        run: the run.

    Attributes:
        active: whether ranks compare what waits.
        every: with how many iterations between; at the end of an epoch and of the training they always do.
        skipping: the points after which ranks compare whether to leave the iteration out.
        interrupted: whether Ctrl-C came to this rank, and the others do not know yet.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.active = self.interrupted = self._begun = False
        self.every = 1
        self.skipping: frozenset[str] = frozenset()
        self._schedules: list[tuple[Schedule, PointMoment]] = []

    def begin(self) -> None:
        """The hooks of the run are there: see, together, whether any of them can ask for anything."""
        run = self._run
        if run.ranks.world_size == 1:
            return
        own = any(map(_can_ask, run.bus.hooks.values())), [point for point in SKIPPABLE if self._can_skip(point)]
        told = run.ranks.gather("who can ask", own)
        self.active, self._begun = any(can for can, _ in told), True
        self.skipping = frozenset(point for _, points in told for point in points)
        moment = PointMoment(run.clock, POINTS[ITERATION])
        askers = [each for each in run.bus.table.listeners(ITERATION, run) if _can_ask(each.plugin)]
        self._schedules = [(each.schedule, moment) for each in askers if each.schedule is not None]
        run.bus.changed()

    def check(self, asker: str) -> None:
        """See that a request can be agreed on.

        Raises:
            RequestError: the ranks do not compare requests, since nobody was expected to make any.
        """
        if self._begun and not self.active and asker in self._run.bus.hooks:
            raise RequestError(
                f"hook {asker!r} has a wish, and with several processes the ranks do not compare wishes where no hook "
                "can have any: say makes_requests = True in its class, and not observer = True."
            )

    def reach(self, point: str) -> bool:
        """Come to a boundary, with the other ranks. Returns whether what waits can be done now.

        Raises:
            RankError: another rank has failed, or is elsewhere.
        """
        run = self._run
        if not self.active or run.exception is not None:
            return True
        if point == ITERATION and not self._is_due():
            return False
        self.admit_interrupt()
        own = _Told(point, run.iters_done, [_with_saver(each, run.bus.pm.get_name) for each in run.queue.waiting])
        if not self._is_the_same_everywhere(own):
            self._unite(own)
        return True

    def admit_interrupt(self) -> None:
        """Let Ctrl-C be a request like any other."""
        if self.interrupted:
            self.interrupted = False
            self._run.interrupt_now()

    def agree_to_skip(self) -> None:
        """Leave the iteration out everywhere, where a hook of any rank has asked for that."""
        import torch

        run = self._run
        wish = torch.tensor(int(run.should_skip_iter))
        run.should_skip_iter = bool(run.ranks.reduce("leave the iteration out", wish, "max"))

    # -- inside ------------------------------------------------------------------------------

    def _can_skip(self, point: str) -> bool:
        listeners = self._run.bus.table.listeners(point, self._run)
        return any(getattr(each.plugin, "skips_iterations", False) for each in listeners)

    def _is_due(self) -> bool:
        """Whether ranks compare after this iteration: every so many, and where a hook that asks was due by schedule."""
        clock = self._run.clock
        if clock.iters_done % self.every == 0 or clock.limit_reached:
            return True
        return any(schedule.due(moment) for schedule, moment in self._schedules)

    def _is_the_same_everywhere(self, own: _Told) -> bool:
        """Whether every rank has told the same; the time of schedules goes on, for all of them."""
        import torch

        clock = self._run.clock
        number = _digest(own)
        vector = torch.tensor([number, -number, int(clock.seconds)])
        greatest, least, clock.agreed_seconds = self._run.ranks.reduce("requests", vector, "max").tolist()
        return bool(greatest == -least)

    def _unite(self, own: _Told) -> None:
        """Let what waits be what waits on any rank, in the order of the ranks."""
        run = self._run
        told = run.ranks.gather("requests", own)
        if len({(each.point, each.iteration) for each in told}) > 1:
            shown = "; ".join(f"rank {r}: {each.point}, iteration {each.iteration}" for r, each in enumerate(told))
            raise RankError(
                f"The ranks are at different places: {shown}. See that the training loaders of all ranks give the same "
                "number of batches, and that every rank emits the same events."
            )
        united: list[Request] = []
        for rank, each in enumerate(told):
            for request in each.requests:
                is_of_all = all(request in other.requests for other in told)
                marked = request if is_of_all else replace(request, reason=f"{request.reason} on rank {rank}".lstrip())
                united += [] if is_of_all and request in united else [marked]
        run.queue.waiting = [_with_saver(each, run.bus.pm.get_plugin) for each in united]


def begin_together(run: Run) -> None:
    """Give all ranks the id and the seed of the main one, and see that they have the same hooks.

    Raises:
        RankError: they do not; the message shows both.
    """
    if run.ranks.world_size == 1:
        return
    run.id, run.seed = run.ranks.broadcast("id and seed", (run.id, run.seed))
    own = [_described(name, hook) for name, hook in run.bus.hooks.items()]
    for rank, other in enumerate(run.ranks.gather("hooks", own)):
        if other != own:
            raise RankError(_difference(run.ranks.rank, own, rank, other))


def _can_ask(plugin: object) -> bool:
    return bool(getattr(plugin, "makes_requests", True)) and not getattr(plugin, "observer", False)


def _with_saver(request: Request, look_up: Callable[[Any], Any]) -> Request:
    """The same request with another saver, if it has one: it travels under its name."""
    saver = request.details.get("saver")
    return request if saver is None else replace(request, details={**request.details, "saver": look_up(saver)})


def _digest(told: _Told) -> int:
    """A number that is the same where the same is told."""
    return int.from_bytes(hashlib.blake2b(repr(told).encode(), digest_size=7).digest())


def _described(name: str, hook: object) -> str:
    text = f"{name}: {type(hook).__name__} of {package_of(hook)}"
    if not isinstance(hook, Hook):
        return text
    priority = hook.priority if hook.config.priority is None else hook.config.priority
    given = hook.config.model_dump(exclude_unset=True, exclude={"name", "priority"})
    settings = json.loads(json.dumps(given, default=_kind))
    return ", ".join([text, f"priority {int(priority)}", *(f"{key}={value!r}" for key, value in settings.items())])


def _kind(value: object) -> str:
    """What an object of Python is called in every process: its text may hold an address."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _difference(rank: int, own: list[str], other_rank: int, other: list[str]) -> str:
    """The first hook that is not the same, on both ranks."""
    pairs = enumerate(zip_longest(own, other, fillvalue="none"), 1)
    number, pair = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    both = sorted([f"  rank {rank}: {pair[0]}", f"  rank {other_rank}: {pair[1]}"])
    return "\n".join(
        [f"The ranks have different hooks, and need the same ones in the same order. Number {number} of them is", *both]
    )
