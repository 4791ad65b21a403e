"""Number of samples of the batches of a run: declared, read from the batch sampler, or inferred from the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from hookbus.data.collections import declared_size, describe_batch, plausible_sizes, quick_size
from hookbus.errors import LoopError

REMEMBERED_BATCHES = 2
"""Number of batches that are remembered until their iteration starts: one of each loader of a `zip`."""
FIX = (
    "Pass `batch_size`, a function of the batch, to the Trainer or to bus.run, or define an attribute `batch_size` of "
    "the batch."
)


class BatchSizes:
    """Number of samples of each batch of a run.

    The size of a batch is, in this order: the result of the user's function, the attribute `batch_size` of the batch,
    the number of indices that the batch sampler yielded for it, and the size inferred from its tensors and lists.

    Args:
        function: The user's function of a batch, or None.
        warn: Function that logs a message.
    """

    def __init__(self, function: Callable[[Any], int] | None, warn: Callable[[str], object]) -> None:
        self._function, self._warn = function, warn
        self._warned = False
        self._handed: deque[tuple[Any, int]] = deque(maxlen=REMEMBERED_BATCHES)

    def hand_out(self, batch: Any, size: int | None) -> None:
        """Remember the size of a batch until it is measured.

        Args:
            batch: Batch of a loader, as the loop receives it.
            size: Number of indices that the batch sampler yielded for the batch; None if it is unknown.
        """
        if size is not None:
            self._handed.append((batch, size))

    def measure(self, batch: Any) -> int | None:
        """Return the number of samples of a batch, None if it is unknown.

        Args:
            batch: A batch; None for the last batch that was handed out.

        Raises:
            LoopError: If the user's function does not return a number of samples.
        """
        if batch is None and not self._handed:
            return None
        if self._function is None and not self._handed:
            quick = quick_size(batch)
            if quick is not None:
                return quick
        handed = list(self._handed)
        # Released here: a batch must not occupy memory while the next one is loaded.
        self._handed.clear()
        if batch is None:
            batch = handed[-1][0]
        if self._function is not None:
            return _check_size(self._function(batch))
        if (size := declared_size(batch)) is not None:
            return size
        return self._infer(batch) if (size := _find_size(batch, handed)) is None else size

    def _infer(self, batch: Any) -> int | None:
        """Return the most plausible size of a batch, and warn once if there are several or none."""
        sizes = plausible_sizes(batch)
        # A batch that is a number or a text has no samples.
        if len(sizes) != 1 and not self._warned and not isinstance(batch, (int, float, str, bytes)):
            self._warned = True
            self._warn(_format_warning(batch, sizes))
        return sizes[0] if sizes else None


def _check_size(size: Any) -> int:
    """Return the result of the user's function as an integer."""
    # Not `operator.index`: a tensor on an accelerator would synchronize with the device.
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 0:
        raise LoopError(
            f"batch_size: the function must return an integer >= 0, got {size!r}. Return the number of samples of the "
            "batch, such as len(batch['labels'])."
        )
    return int(size)


def _find_size(batch: Any, handed: Sequence[tuple[Any, int]]) -> int | None:
    """Return the size of the batch that was handed out as this one, None if it was another one.

    The loop may have moved the batch to a device or changed its form, but not its size.
    """
    for other, size in handed:
        if other is batch:
            return size
    # The sizes of a batch of tensors are compared quickly, because a batch on a device is another object each time.
    get_sizes = plausible_sizes if quick_size(batch) is None else quick_size
    sizes = get_sizes(batch)
    return next((size for other, size in reversed(handed) if get_sizes(other) == sizes), None)


def _format_warning(batch: Any, sizes: Sequence[int]) -> str:
    got = describe_batch(batch)
    if not sizes:
        return f"batch_size: the number of samples of a batch is unknown, so none are counted, got {got}. {FIX}"
    return (
        f"batch_size: the number of samples of a batch is ambiguous, got {got}. Counted {sizes[0]} and not "
        f"{' or '.join(map(str, sizes[1:]))}; the means of a validation are weighted by this number. {FIX}"
    )
