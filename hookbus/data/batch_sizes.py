"""Number of samples of the batches of a run: declared, read from the batch sampler, or inferred from the batch.

Imported without torch, because the clock of a run counts samples by it.
"""

from __future__ import annotations

from collections import Counter, UserDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from numbers import Integral
from typing import Any

from hookbus.errors import LoopError

INSPECTED_ITEMS = 4
"""Number of items of a list that are inspected: its samples are alike, and a batch may have thousands."""
MAX_COLUMNS = 8
"""Number of tensors of a batch of columns; a longer list is inspected."""
PLAIN_TYPES = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of values without a size, which are recognized without further checks."""


def batch_size(batch: Any) -> int:
    """Return the number of samples of a batch, 0 if it contains nothing to count.

    Args:
        batch: A tensor of shape (N, ...), a list of N samples, or a tuple, list, mapping, named tuple or dataclass of
            them.
    """
    quick = quick_size(batch)
    return next(iter(plausible_sizes(batch)), 0) if quick is None else quick


def quick_size(batch: Any) -> int | None:
    """Return the number of samples of a tensor, or of a list or dict of tensors, None if it is not obvious.

    Called at every iteration.
    """
    kind = type(batch)
    try:
        if kind is tuple or kind is list:
            return _get_pair_size(*batch) if len(batch) == 2 else _get_common_size(batch)
        if kind is dict:
            sizes = {value.shape[0] for value in batch.values()}
            return sizes.pop() if len(sizes) == 1 else None
        if (shape := getattr(batch, "shape", None)) is not None:
            return shape[0] if getattr(batch, "batch_size", None) is None else None
        # The output of a tokenizer of transformers.
        return quick_size(batch.data) if isinstance(batch, UserDict) else None
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError):
        return None  # not tensors with dimensions


def _get_pair_size(inputs: Any, targets: Any) -> int | None:
    """Return `_get_common_size` of two tensors, which are the most frequent batch, a fifth faster."""
    first, second = inputs.shape, targets.shape
    size = first[0]
    return size if second[0] == size and not len(first) == len(second) == 3 else None


def _get_common_size(tensors: Sequence[Any]) -> int | None:
    """Return the first dimension that tensors have in common, None if they may be samples."""
    if len(tensors) > MAX_COLUMNS:
        return None
    shape = tensors[0].shape
    size, may_be_images = shape[0], len(shape) == 3
    for tensor in tensors[1:]:
        other = tensor.shape
        if other[0] != size:
            return None
        may_be_images = may_be_images and len(other) == 3
    # Two tensors of shape (3, H, W) may be two images.
    return None if may_be_images else size


def plausible_sizes(batch: Any) -> list[int]:
    """Return the numbers of samples that a batch may contain, the most plausible one first; [] if there is none.

    Args:
        batch: As in `batch_size`.
    """
    # Lists of text or plain numbers count only if there are no tensors: they may be (height, width).
    return _get_sizes(batch, nested=False, plain=False) or _get_sizes(batch, nested=False, plain=True)


def declared_size(batch: Any) -> int | None:
    """Return the attribute `batch_size` of a batch, None if it is missing or not a number of samples.

    Args:
        batch: A batch, such as one of PyTorch Geometric, or a TensorDict, whose attribute is a shape.
    """
    size = getattr(batch, "batch_size", None)
    if isinstance(size, tuple) and size:
        size = size[0]
    return size if isinstance(size, int) and not isinstance(size, bool) and size >= 0 else None


def field_names(value: Any) -> list[str] | None:
    """Return the names of the fields of a dataclass or an attrs instance, None for any other value."""
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    attributes = getattr(type(value), "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def describe_batch(batch: Any, depth: int = 3) -> str:
    """Return a short description of a batch for a message: types, lengths and shapes.

    Args:
        batch: A batch.
        depth: Number of nested containers to describe.
    """
    kind, shape = type(batch).__name__, _get_shape(batch)
    if shape is not None:
        return f"{kind} of shape {tuple(shape)}"
    if depth == 0 or isinstance(batch, (str, bytes)):
        return kind
    if (columns := _get_columns(batch)) is not None:
        items = [f"{name}: {describe_batch(item, depth - 1)}" for name, item in islice(columns.items(), 4)]
    elif isinstance(batch, Sequence):
        kind, items = f"{kind} of {len(batch)}", [describe_batch(item, depth - 1) for item in batch[:2]]
    else:
        return kind
    return f"{kind} ({', '.join(items)}{', ...' if len(items) < len(columns or batch) else ''})"


def _get_sizes(value: Any, *, nested: bool, plain: bool) -> list[int]:
    """Return the plausible sizes of a value, best first.

    Args:
        value: A batch or a part of it.
        nested: Whether the value is a part of a batch, so that a list in it is a list of samples.
        plain: Whether lists without tensors count.
    """
    if type(value) in PLAIN_TYPES:
        return []
    if (declared := declared_size(value)) is not None:
        return [declared]
    if (shape := _get_shape(value)) is not None:
        return [shape[0]] if shape else [] if nested else [1]
    # A PackedSequence is sorted by length, so that its first step contains all sequences.
    if getattr(value, "batch_sizes", None) is not None:
        return [int(value.batch_sizes[0])]
    if (columns := _get_columns(value)) is not None:
        return _combine([_get_sizes(item, nested=True, plain=plain) for item in columns.values()])
    if isinstance(value, Sequence) and value and not isinstance(value, (str, bytes)):
        return _get_sequence_sizes(value, nested, plain)
    return []


def _get_sequence_sizes(items: Sequence[Any], nested: bool, plain: bool) -> list[int]:
    """Return the plausible sizes of a list or tuple: its length if it contains samples, or that of its columns."""
    inspected = list(islice(items, INSPECTED_ITEMS))
    if PLAIN_TYPES.issuperset(kinds := set(map(type, inspected))):
        return [len(items)] if plain and len(kinds) == 1 else []
    columns = _combine([_get_sizes(item, nested=True, plain=plain) for item in inspected])
    if len({_get_layout(item) for item in inspected}) > 1:
        return columns  # such as images and labels: the samples of a list are alike
    samples, first = [len(items)], inspected[0]
    if not columns:
        return samples if plain or _get_shape(first) is not None else []
    if _get_columns(first) is not None:
        # A number or text in a mapping marks a sample; a batch contains a tensor or a list of them.
        is_sample = len(columns) > 1 or any(map(_contains_plain_value, inspected))
        return samples if is_sample else _order(samples, columns, columns_first=isinstance(items, tuple))
    if (dimensions := len(_get_shape(first) or ())) == 0:
        return _order(samples, columns) if nested else columns  # a list of lists
    if len(columns) > 1:
        # Different first dimensions: not the columns of one batch, but a tuple is rarely a list of samples either.
        return samples if nested else _order(samples, columns, columns_first=isinstance(items, tuple))
    if nested:
        return _order(samples, columns, columns_first=dimensions > 3)
    # Images of shape (C, H, W) look like columns of shape (N, ...).
    is_pair = len(items) == 2 and _get_shape(first) == _get_shape(items[1])
    return _order(samples, columns, columns_first=is_pair) if dimensions == 3 else columns


def _order(samples: list[int], columns: list[int], *, columns_first: bool = False) -> list[int]:
    """Return the distinct sizes of two readings of a list, in the order of their plausibility."""
    return list(dict.fromkeys(columns + samples if columns_first else samples + columns))


def _combine(sizes: list[list[int]]) -> list[int]:
    """Return the sizes that are plausible for all columns; if there is none, all, the most frequent one first."""
    known = [candidates for candidates in sizes if candidates]
    common = [size for size in known[0] if all(size in candidates for candidates in known)] if known else []
    return common or [size for size, _ in Counter(size for candidates in known for size in candidates).most_common()]


def _get_columns(value: Any) -> Mapping[Any, Any] | None:
    """Return the items of a mapping, named tuple, dataclass or attrs instance by name, None for any other value."""
    if type(value) in PLAIN_TYPES:
        return None
    if isinstance(value, Mapping):
        return value
    names = getattr(value, "_fields", None) if isinstance(value, tuple) else field_names(value)
    return None if names is None else {name: getattr(value, name, None) for name in names}


def _get_layout(item: Any) -> Any:
    """Return a value that is equal for the samples of one list."""
    columns = _get_columns(item)
    shape = _get_shape(item)
    return type(item), None if shape is None else len(shape), None if columns is None else tuple(columns)


def _contains_plain_value(item: Any) -> bool:
    values = [value for value in (_get_columns(item) or {}).values() if value is not None]
    return any(not _get_shape(value) and not isinstance(value, (list, tuple, Mapping)) for value in values)


def _get_shape(value: Any) -> Sequence[int] | None:
    """Return the shape of a tensor or an array, None for any other value."""
    try:
        shape = getattr(value, "shape", None)
    except RuntimeError:  # a nested tensor with the strided layout has no shape
        return (value.size(0), 0)
    return shape if isinstance(shape, tuple) else None


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

    @property
    def last_batch(self) -> Any:
        """The last batch that was handed out and not measured yet, None if there is none."""
        return self._handed[-1][0] if self._handed else None

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
