"""Lists of passes over the training data, and their state in checkpoints.

The passes are saved in the order of the calls of `run.batches`, and a resumed run matches its calls to them in this
order. The loop does not repeat calls in the body of an earlier batch of another pass, so a complete pass of such a body
is not saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookbus._run.data_passes import DataPass
from hookbus.errors import LoopError

if TYPE_CHECKING:
    from hookbus._run.clock import Clock


@dataclass(frozen=True, slots=True)
class Moment:
    """Moment whose state is saved.

    Attributes:
        iterations: Number of completed iterations.
        at_boundary: Whether it is the last iteration boundary, and not the current moment. What the loop has read or
            left since the boundary belongs to the iteration in progress. Default: True.
    """

    iterations: int
    at_boundary: bool = True

    def exists(self, data_pass: DataPass) -> bool:
        """Return whether the pass had been called."""
        return not self.at_boundary or data_pass.restored or data_pass.called_at < self.iterations

    def position(self, data_pass: DataPass) -> int:
        """Return the number of batches that were handed out."""
        before = self.at_boundary and data_pass.read_at == self.iterations
        return data_pass.position_before if before else data_pass.position

    def ended(self, data_pass: DataPass) -> bool:
        """Return whether the pass had ended."""
        left_later = self.at_boundary and data_pass.ended_at == self.iterations and not data_pass.exhausted
        return data_pass.ended and not left_later

    def in_current_body(self, data_pass: DataPass) -> bool:
        """Return whether the pass was called in the body of the current batches of its parents."""
        parents = data_pass.parents
        return all(not self.ended(parent) and self.position(parent) == position for parent, position in parents)

    def holds_parents(self, data_pass: DataPass) -> bool:
        """Return whether the bodies of the parents are in progress, because they iterate over this pass."""
        iterates = data_pass.for_statement is not None and not self.ended(data_pass)
        return iterates and bool(data_pass.parents) and self.in_current_body(data_pass)

    def to_state(self, data_pass: DataPass, repeated: int) -> dict[str, Any]:
        """Return the state of a pass, whose last `repeated` batches are to be handed out again.

        Raises:
            LoopError: If the loader cannot be positioned there.
        """
        position, ended = self.position(data_pass) - repeated, self.ended(data_pass)
        # The loop repeats a pass that it has left before the first iteration, such as a look at one batch.
        if ended and not data_pass.exhausted and data_pass.ended_at == data_pass.called_at:
            ended, position = data_pass.first_position > 0, data_pass.first_position
        loader_state = data_pass.get_loader_state()
        if "loader" in loader_state and not ended and position != data_pass.position:
            raise _make_position_error(data_pass, position)
        return {
            "ordinal": data_pass.ordinal,
            "position": position,
            "length": data_pass.length,
            "epoch": data_pass.epoch,
            "iteration": data_pass.iteration,
            "group": data_pass.group,
            "ended": ended,
            "count": data_pass.count,
            "start": dict(data_pass.start),
            "loader": loader_state,
        }


def _make_position_error(data_pass: DataPass, position: int) -> LoopError:
    return LoopError(
        f"run.batches: the loader saves its position only after batch {data_pass.position}, so the run cannot resume "
        f"after batch {position}. Use a loader of a map-style dataset without `state_dict`."
    )


class PassList:
    """Passes of an epoch, or of a run without epochs, in the order of the calls.

    Attributes:
        passes: Passes whose calls the loop repeats when it resumes.
        next_ordinal: Ordinal of the next pass.
    """

    def __init__(self) -> None:
        self.passes: list[DataPass] = []
        self.next_ordinal = 0
        self._saved: list[Mapping[str, Any]] = []  # passes of the checkpoint whose calls are not repeated yet
        self._previous: list[DataPass] = []  # of the previous epoch, whose loaders continue in this one

    def add(self, data_pass: DataPass, replaced: DataPass | None = None) -> None:
        """Add a pass, and restore its state if the checkpoint contains it.

        Args:
            data_pass: The pass.
            replaced: Complete pass of the same iterator of the loop, if the loop reads its loader again.
        """
        self.passes = [other for other in self.passes if not other.is_obsolete]
        if replaced is not None and replaced in self.passes:
            self.passes[self.passes.index(replaced)] = data_pass
            data_pass.replaced, replaced.replaced = replaced, None
        else:
            self.passes.append(data_pass)
            if self._saved:
                data_pass.restore(self._take_saved())
                return
        data_pass.ordinal, self.next_ordinal = self.next_ordinal, self.next_ordinal + 1
        index = len(self.passes) - 1
        if index < len(self._previous) and self._previous[index].resumable is None:
            data_pass.loader_state = self._previous[index].loader_state

    def insert_saved(self, saved: Mapping[str, Any]) -> None:
        """Insert a saved pass, which the next call continues."""
        self._saved.insert(0, saved)

    def begin_epoch(self, first_ordinal: int) -> None:
        """Start a new epoch, to which passes that have not started yet belong."""
        waiting = [
            data_pass for data_pass in self.passes if not (data_pass.started or data_pass.ended or data_pass.restored)
        ]
        done = [data_pass for data_pass in self.passes if data_pass not in waiting]
        for data_pass in done:
            data_pass.loader = None
            data_pass.invalid = (
                "run.batches: an iterator of an earlier epoch is read. Call run.batches in each epoch, or before "
                "run.epochs() for an iterator that is read in several epochs."
            )
        self._previous = [*done, *self._previous[len(done) :]]
        self.passes, self._saved, self.next_ordinal = waiting, [], first_ordinal + len(waiting)
        for ordinal, data_pass in enumerate(waiting, first_ordinal):
            data_pass.ordinal = ordinal

    def drop_complete(self) -> None:
        """Start new passes if all saved passes are complete, for a run that continues another one in this process."""
        if all(saved["ended"] or saved["position"] == saved["length"] for saved in self._saved):
            self._saved = []

    def merge(self, iterations: int) -> None:
        """Merge consecutive complete passes, so that the list does not grow in a run without epochs."""
        merged: list[DataPass] = []
        for data_pass in self.passes:
            if merged and all(p.ended and p.ended_at < iterations and not p.parents for p in (merged[-1], data_pass)):
                data_pass.count += merged.pop().count
            merged.append(data_pass)
        self.passes = merged

    def _take_saved(self) -> Mapping[str, Any]:
        first = self._saved[0]
        if first["count"] > 1:
            self._saved[0] = {**first, "count": first["count"] - 1}
            return {**first, "count": 1}
        return self._saved.pop(0)

    # -- state ------------------------------------------------------------------------------------

    def to_state(self, moment: Moment, *, complete: bool = False) -> dict[str, Any]:
        """Return the state at a moment.

        Args:
            moment: The moment.
            complete: Whether the epoch is complete, so that only the states of its loaders are saved.

        Raises:
            LoopError: If a loader cannot be positioned at the moment.
        """
        candidates = [data_pass if moment.exists(data_pass) else data_pass.replaced for data_pass in self.passes]
        existing = [data_pass for data_pass in candidates if data_pass is not None]
        for data_pass in self.passes:
            if not moment.exists(data_pass) and data_pass.started and "loader" in data_pass.get_loader_state():
                raise _make_position_error(data_pass, 0)
        idle = [*(existing if complete else []), *self._previous[len(existing) + len(self._saved) :]]
        states = {} if complete else {"passes": self._get_pass_states(moment, existing), "next": self._get_next(moment)}
        return {**states, "loaders": [data_pass.get_loader_state() for data_pass in idle]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `to_state()`."""
        self._saved, self.next_ordinal = list(state.get("passes", ())), state.get("next", 0)
        self._previous = [DataPass(None, 0) for _ in range(len(self._saved))]
        for loader_state in state.get("loaders", ()):
            self._previous.append(DataPass(None, 0))
            self._previous[-1].loader_state = loader_state

    def _get_next(self, moment: Moment) -> int:
        later = [data_pass.ordinal for data_pass in self.passes if not moment.exists(data_pass)]
        return min([self.next_ordinal, *later])

    def _get_pass_states(self, moment: Moment, existing: list[DataPass]) -> list[Mapping[str, Any]]:
        # The body of the current batch of these passes is in progress: the batch is handed out again.
        held = [item for data_pass in existing if moment.holds_parents(data_pass) for item in data_pass.parents]
        saved = [data_pass for data_pass in existing if _is_repeated(data_pass, moment, held)]
        states = [moment.to_state(p, int(any(p is parent for parent, _ in held))) for p in saved]
        return [*states, *self._saved]


def _is_repeated(data_pass: DataPass, moment: Moment, held: list[tuple[DataPass, int]]) -> bool:
    """Return whether the loop repeats the call of a pass when it resumes."""
    if not data_pass.parents:
        return True
    if any(item in held for item in data_pass.parents):
        return True
    # Otherwise the call is in a body that is complete. A pass that is read in several bodies is continued.
    return not moment.ended(data_pass) and not moment.in_current_body(data_pass)


def are_exhausted(passes: list[DataPass], iterations: int) -> bool:
    """Return whether a loop has no further batch to read in an epoch, after a number of completed iterations."""
    moment = Moment(iterations, at_boundary=False)
    if any(moment.holds_parents(data_pass) and not data_pass.at_end for data_pass in passes):
        return False
    open_passes = [data_pass for data_pass in passes if not data_pass.parents and not data_pass.ended]
    direct = [data_pass for data_pass in open_passes if data_pass.for_statement and not data_pass.wrapped]
    # A `for` statement that reads several loaders side by side ends with the shortest one.
    return any(p.at_end for p in direct) if direct else all(p.at_end for p in open_passes)


# -- positions saved by version 0.1.0 ----------------------------------------------------------------
# It saved the state of one loader per epoch, and the number of completed iterations of the epoch, over all of its
# loaders in the order of the calls.


def convert_former_state(state: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Return the passes of the epoch, for `PassList.load_state`."""
    loader = {key: value for key, value in state.items() if key in ("loader", "inside")}
    if not clock.epoch_open:
        return {"loaders": [loader] if loader else []}
    data_pass = DataPass(None, clock.epoch_first_iter)
    data_pass.epoch, data_pass.position = clock.epochs_done, clock.iters_done - clock.epoch_first_iter
    data_pass.start = {key: value for key, value in state.items() if key == "epoch_began"}
    data_pass.loader_state = loader
    return {"passes": [_to_state(data_pass)], "next": 1}


def split_former_pass(data_pass: DataPass, length: int | None) -> dict[str, Any] | None:
    """Limit the position of a pass to the length of its loader.

    Returns:
        State of the next pass, which the remaining iterations belong to; None if there are none.
    """
    if not data_pass.former or length is None or data_pass.position <= length:
        return None
    rest, data_pass.position = data_pass.position - length, length
    return {**_to_state(data_pass), "position": rest}


def _to_state(data_pass: DataPass) -> dict[str, Any]:
    return {**Moment(0).to_state(data_pass, 0), "former": True}
