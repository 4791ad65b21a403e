"""Tokens of a run: their number in each batch, and their total.

With multiple ranks, the total is that of all ranks. It is updated when the ranks synchronize their requests, in the
same all-reduce, so that schedules take the tokens of an iteration into account in the following one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from hookbus._utils.imports import resolve_import
from hookbus.data.batch_sizes import BatchSizes
from hookbus.errors import ConfigError, LoopError

Measure = Callable[[Any], int | None]
"""Function that returns the number of tokens of a batch, None if there is no batch."""
NOT_COUNTED = "the run counts no tokens. Pass `batch_tokens`, a function of the batch or the name of one of its keys."
NO_BATCH = (
    "batch_tokens: the iteration has no batch whose tokens could be counted. Pass batch= to before_train_iter or "
    "after_train_iter."
)


@dataclass(slots=True)
class TokenCounts:
    """Counts of tokens, from 0, of which a run with multiple ranks knows those of its last synchronization.

    Attributes:
        limit: Limit of the run in tokens, None if there is none.
        measure: Function that returns the number of tokens of a batch, None if tokens are not counted.
        is_summed: Whether the tokens of several ranks are summed.
        done: Total of all ranks.
        batch: Tokens of the current or last micro-batch of this rank.
        own: Tokens of this rank that the total does not contain yet.
        before, seen: Totals before and after the tokens that schedules attribute to the current or last iteration.
        epoch_before, epoch_first: Totals at the start of the previous and of the current or last epoch.
        epoch_end: Total at the end of the last complete epoch.
        step_before, step_seen: Totals at the previous and at the last optimizer step.
    """

    limit: int | None = None
    measure: Measure | None = None
    is_summed: bool = False
    done: int = 0
    batch: int = 0
    own: int = 0
    before: int = 0
    seen: int = 0
    epoch_before: int = 0
    epoch_first: int = 0
    epoch_end: int = 0
    step_before: int = 0
    step_seen: int = 0
    _ahead: int | None = None
    _is_measured: bool = False

    # Keys of the checkpoint format: a new name breaks existing checkpoints.
    STATE_FIELDS = (
        *("done", "before", "seen", "epoch_before", "epoch_first", "epoch_end", "step_before", "step_seen"),
    )  # fmt: skip

    @property
    def is_at_limit(self) -> bool:
        """Whether the total has reached the limit."""
        return self.limit is not None and self.done >= self.limit

    def measure_ahead(self, batch: Any) -> None:
        """Count the tokens of the next iteration before its batch is moved to a device."""
        if self.measure is not None:
            self._ahead = self.measure(batch)

    def begin_epoch(self) -> None:
        """Start an epoch. It contains the tokens that were added to the total after the end of the previous one."""
        self.epoch_before, self.epoch_first = self.epoch_first, self.epoch_end

    def end_epoch(self) -> None:
        """Complete an epoch."""
        self.epoch_end = self.done

    def begin_iter(self, batch: Any) -> None:
        """Count the tokens of a batch, if it is known at the start of its iteration."""
        self._is_measured, self.batch = False, 0
        self._add(batch)
        if self.is_summed:
            self.before, self.seen = self.seen, self.done

    def end_iter(self, batch: Any) -> None:
        """Add the tokens of the iteration.

        Raises:
            LoopError: If the iteration has no batch.
        """
        if not self._is_measured:
            self._add(batch)
        if not self._is_measured:
            raise LoopError(NO_BATCH)
        if self.is_summed:
            self.own += self.batch
        else:
            self.done = self.seen

    def count_step(self) -> None:
        """Assign the tokens since the last optimizer step to this one."""
        self.step_before, self.step_seen = self.step_seen, self.seen

    def add_ranks(self, counts: list[int]) -> None:
        """Add the tokens of all ranks since the last synchronization."""
        self.done += sum(counts)
        self.own = 0

    def estimate_last_iter(self, iterations: int) -> int | None:
        """Return an estimate of the iteration that reaches the limit, None without a limit or a count.

        Args:
            iterations: Number of completed iterations.
        """
        if self.limit is None or not self.done:
            return None
        return iterations + -(-max(self.limit - self.done, 0) * iterations // self.done)

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {name: getattr(self, name) for name in self.STATE_FIELDS}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore the counts that `state_dict()` returned; {} for those of a run without tokens."""
        for name in self.STATE_FIELDS:
            setattr(self, name, state.get(name, 0))
        self.own = 0

    def _add(self, batch: Any) -> None:
        assert self.measure is not None
        count, self._ahead = self.measure(batch) if self._ahead is None else self._ahead, None
        if count is None:
            return
        self._is_measured, self.batch = True, count
        if not self.is_summed:
            self.before, self.seen = self.done, self.done + count


def check_batch_tokens(value: object) -> str:
    """Return the problem of an argument `batch_tokens`, or "" if it is valid."""
    if value is None or callable(value) or (isinstance(value, str) and value):
        return ""
    return (
        "batch_tokens: should be a function of the batch, or the name of one of its keys or attributes, got "
        f"{value!r}. `tokens` is the limit of the run."
    )


def check_token_limit(value: object) -> str:
    """Return the problem of an argument `tokens`, or "" if it is valid."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return ""
    if callable(value) or isinstance(value, str):
        return f"tokens: should be the limit of the run in tokens, got {value!r}. Pass a function as `batch_tokens`."
    return f"tokens: expected an integer >= 0, got {value!r}."


def to_token_limit(value: Any) -> Any:
    """Return a limit in tokens as an integer if it is a whole number, such as 2e9; any other value unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def build_measure(batch_tokens: Callable[[Any], Any] | str, batches: BatchSizes) -> Measure:
    """Return the function that counts the tokens of a batch.

    Args:
        batch_tokens: Function of a batch; the name of a key or attribute of the batch; or an import string.
        batches: Batches that were handed out, of which the last one is counted if the loop passes none.

    Raises:
        ConfigError: If the import string cannot be resolved.
    """
    count = _build_count(batch_tokens)

    def measure(batch: Any) -> int | None:
        batch = batches.last_batch if batch is None else batch
        return None if batch is None else _check_count(count(batch))

    return measure


def _build_count(batch_tokens: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    if not isinstance(batch_tokens, str):
        return batch_tokens
    name = batch_tokens
    if ":" in name or "." in name:
        function = resolve_import(name)
        if not callable(function):
            raise ConfigError(f"batch_tokens: should be a function, got {function!r} of {name!r}.")
        return function  # type: ignore[no-any-return]

    def read(batch: Any) -> Any:
        # A batch of transformers or a TensorDict is no `Mapping` in all versions.
        if hasattr(batch, "keys") and name in batch.keys():  # noqa: SIM118
            return batch[name]
        if hasattr(batch, name):
            return getattr(batch, name)
        raise LoopError(f"batch_tokens: the batch ({type(batch).__name__}) has no key or attribute {name!r}.")

    return read


def _check_count(count: Any) -> int:
    """Return a number of tokens as an integer.

    Raises:
        LoopError: If it is not one, or if reading it would synchronize with a device.
    """
    device = getattr(getattr(count, "device", None), "type", "cpu")
    if device != "cpu":
        raise LoopError(
            f"batch_tokens: the number of tokens is a tensor on {device}, which would synchronize with the device in "
            "every iteration. Count before the batch is moved, such as in collate_fn, and pass the name of the key, or "
            "count by shapes: batch['input_ids'].numel()."
        )
    if getattr(count, "ndim", None) == 0 and hasattr(count, "item"):
        count = count.item()
    if not isinstance(count, Integral) or isinstance(count, bool) or count < 0:
        shape = getattr(count, "shape", None)
        got = repr(count) if shape is None else f"{type(count).__name__} of shape {tuple(shape)}"
        raise LoopError(
            f"batch_tokens: the number of tokens must be an integer >= 0, got {got}. Pass a function such as "
            "lambda batch: int(batch['attention_mask'].sum())."
        )
    return int(count)
