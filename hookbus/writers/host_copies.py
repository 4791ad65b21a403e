"""Host copies of values for another thread, independent of later changes by the training loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any


def snapshot_value(value: Any) -> Callable[[], Any]:
    """Copy a value to the host. From CUDA devices the copy is asynchronous.

    Args:
        value: Tensor, array, PIL image, or any immutable value.

    Returns:
        Function that waits for the copy and returns the value on the host; to be called on another thread.
    """
    if hasattr(value, "detach"):
        return _copy_tensor(value.detach())
    return partial(_get, value.copy() if hasattr(value, "copy") else value)


def _copy_tensor(tensor: Any) -> Callable[[], Any]:
    if tensor.device.type != "cuda":
        return partial(_get, tensor.clone() if tensor.device.type == "cpu" else tensor.cpu())
    import torch

    with torch.cuda.device(tensor.device):
        # A copy to pageable memory blocks; only pinned memory allows an asynchronous one.
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        target.copy_(tensor, non_blocking=True)
        # The event covers the copy alone; synchronizing the stream would also wait for later kernels.
        copied = torch.cuda.Event()
        copied.record()

    return _PinnedCopy(target, copied)


class _PinnedCopy:
    """Function that waits for an asynchronous copy and returns it."""

    def __init__(self, target: Any, copied: Any) -> None:
        self._target, self._copied = target, copied

    def __call__(self) -> Any:
        self._copied.synchronize()
        return self._target

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_get, self())  # an event of the device cannot be pickled


def _get(value: Any) -> Any:
    return value


def to_finite_array(name: str, values: Any) -> Any:
    """Return the finite values as a one-dimensional float64 NumPy array.

    Args:
        name: Name of the values in the message.
        values: Tensor, array, or sequence of numbers.

    Raises:
        ValueError: If no value is finite, so that no histogram can be computed.
    """
    import torch

    flat = torch.as_tensor(values).detach().reshape(-1).double()
    finite = flat[flat.isfinite()]
    if not finite.numel():
        raise ValueError(f"{name!r} contains no finite value, so no histogram can be computed")
    return finite.numpy()


def to_number(value: Any) -> float:
    """Return a Python float from a number, or a tensor or array with one element; booleans become 0 or 1.

    Raises:
        TypeError: If the value is not a real number.
        ValueError: If a NumPy array has more than one element.
        RuntimeError: If a tensor has more than one element.
        OverflowError: If the number is too large for a float.
    """
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, Real):
        return float(item)
    raise TypeError(f"expected a real number, got {type(item).__name__}")


def nbytes(value: Any) -> int:
    """Return the approximate memory size of a value in bytes."""
    return 100 + int(getattr(value, "nbytes", 0))  # 100 bytes for the objects of an entry
