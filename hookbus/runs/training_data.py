"""`run.epochs()` and `run.batches(loader)`: what is left to do, from the right place to the agreed end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookbus.errors import LoopError, RankError
from hookbus.runs.interrupts import ends_by_signal

if TYPE_CHECKING:
    from hookbus.run import Run
    from hookbus.training.data import Feed
    from hookbus.training.seeding import Preparation
    from hookbus.training.train_shard import Part

__all__ = ["TrainingData"]


class TrainingData:
    """The place of a run in its data.

    Args:
        run: the run.
        state: what `state_dict` gave, where the run goes on with the data of an earlier one.

    Attributes:
        leaving_epoch: whether the epoch is to end here, as if its loader had ended.
        part: which part of the data this process reads; None for all of it.
    """

    def __init__(self, run: Run, state: Mapping[str, Any]) -> None:
        self._run = run
        self._feed: Feed | None = None
        self._source: object = None
        self._preparations: list[Preparation] = []
        self._state = dict(state)
        self._to_skip = self._done_of_epoch()
        self.leaving_epoch = False
        self.part: Part | None = None

    def before_reading(self, prepare: Preparation) -> None:
        """Have the training data changed while it is read, in whatever process reads it; `run.batches` sees to it.

        Args:
            prepare: `prepare(dataset, epoch, iteration)`, with indices from 0. It is called before the samples of each
                iteration are read. What it does follows from these numbers alone, since every worker has a copy of its
                own; where workers are spawned it has to pickle.

        Raises:
            LoopError: the training data is being read already.
        """
        if self._feed is not None:
            raise LoopError(
                "The training data is being read already: say at before_run or before_train what to change."
            )
        self._preparations.append(prepare)

    def see_that_it_reads(self, hook: str) -> None:
        """See, inside an iteration, that the training data goes through `run.batches`, where hooks can change it.

        Args:
            hook: the name of the hook that wants to change it, for the message.

        Raises:
            LoopError: the loop reads its data by itself.
        """
        if self._feed is None:
            raise LoopError(
                f"hook {hook!r} changes the training data while it is read, and this loop reads it by itself: take the "
                "batches from run.batches(loader)."
            )

    def begin_epoch(self) -> None:
        """Just before `before_epoch` and `before_train_epoch`: an epoch begins, or goes on after a resume."""
        run = self._run
        if not run.clock.epoch_open:
            run.metrics.epoch.reset()
            self.leaving_epoch, self._to_skip = False, 0
        run.clock.begin_epoch()
        if run.stops:
            run.clock.cut_epoch()

    def epochs(self) -> Iterator[int]:
        """The epochs that are left.

        Raises:
            LoopError: the run has no limit, so this would never end.
        """
        run, clock = self._run, self._run.clock
        if clock.max_epochs is None and clock.max_iters is None:
            raise LoopError("run.epochs() needs an end: give epochs= or iterations=.")
        if clock.at_limit:
            run.logger.warning(
                "Nothing to train: %s epochs and %s iterations are done already. Raise the limit, or begin afresh.",
                clock.epochs_done,
                clock.iters_done,
            )
            if run.keeps_brackets:  # hooks may have something to do at its end, such as bringing the best weights back
                run.brackets.open_training()
        while not run.should_stop and not clock.at_limit:
            self.begin_epoch()
            yield clock.epoch
            run.brackets.close_epoch()
            clock.end_epoch()

    def batches(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """The batches that are left of this epoch.

        Raises:
            LoopError: the loader gives no batch at all.
            RankError: the ranks have different numbers of batches.
        """
        if self._run.should_stop_epoch:
            return
        with ends_by_signal(self._run, in_loader=True):
            yield from self._read(loader)

    def _read(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        run, clock = self._run, self._run.clock
        feed = self._feed_of(loader)
        index = begun = self._skip(feed.length)
        if index and not feed.exact:
            run.logger.warning("The training loader cannot be positioned: reading %s batches again.", index)
        batches = feed.batches(clock.epoch, index, clock.iters_done)
        clock.epoch_length = feed.length
        self._see_that_lengths_agree()
        for batch in batches:
            yield index, batch
            index += 1
            if self.leaving_epoch or run.stops or clock.limit_reached:
                if clock.epoch_cut and clock.epoch_length is None:
                    self._look_for_the_end(batches)
                break
        if index == begun == 0:
            raise LoopError(
                "The training loader gave no batch. An iterator can be read only once: give a loader that can be "
                "iterated in every epoch, with at least one batch (drop_last may have left none)."
            )

    def state_dict(self) -> dict[str, Any]:
        """What the loader needs to find its place again, besides epoch and iteration."""
        return self._feed.state_dict() if self._feed is not None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._feed = self._source = None
        self._state, self._to_skip = dict(state), self._done_of_epoch()

    def close(self) -> None:
        """Let go of the loader, and with that of its workers; the place is kept.

        Left to the garbage collector, the queues to the workers would be closed before the word to end goes through
        them, and torch would wait for each of them five seconds.
        """
        self.load_state_dict(self.state_dict())

    def _skip(self, length: int | None) -> int:
        """How many batches of the next loader were done before this run went on in the middle of an epoch."""
        skipped = self._to_skip if length is None else min(self._to_skip, length)
        self._to_skip -= skipped
        return skipped

    def _see_that_lengths_agree(self) -> None:
        """A rank that has no more batches would let the others wait for its gradients."""
        ranks, length = self._run.ranks, self._run.clock.epoch_length
        lengths = ranks.gather("batches per epoch", length) if self.part is not None else [length]
        if len(set(lengths)) > 1:
            raise RankError(
                f"The training loaders of the ranks give {', '.join(map(str, lengths))} batches, and all ranks need "
                "the same number: let the sampler leave out, or repeat, what is too much."
            )

    def _say_who_divides(self, loader: Iterable[Any]) -> None:
        from hookbus.training.loaders import can_be_divided

        if self.part is not None and not can_be_divided(loader):
            self._run.logger.info(
                "The training loader is read as it is by each of the %s processes: see that it gives each of them a "
                "part of its own.",
                self.part.world_size,
            )

    def _done_of_epoch(self) -> int:
        clock = self._run.clock
        return clock.iters_done - clock.epoch_first_iter if clock.epoch_open else 0

    def _look_for_the_end(self, batches: Iterator[Any]) -> None:
        """Whether a loader without length has ended: that takes reading on, so its place is noted before."""
        place, clock = self.state_dict(), self._run.clock
        try:
            clock.epoch_cut = next(batches, self) is not self
        finally:
            if clock.epoch_cut:
                self.load_state_dict(place)

    def _feed_of(self, loader: Iterable[Any]) -> Feed:
        if self._feed is None or self._source is not loader:
            from hookbus.training.data import feed_of

            self._feed = feed_of(loader, self._run.seed, self._preparations, self.part)
            self._source = loader
            self._say_who_divides(loader)
            self._feed.load_state_dict(self._state)
            self._state = {}
        return self._feed
