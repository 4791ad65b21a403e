"""Values on their way to another thread: copies that nothing which happens in training can change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any

__all__ = ["current_stream", "finite_values", "kept", "number_of", "size_of"]


def current_stream() -> AbstractContextManager[Any]:
    """The stream of the device in which this thread queues its work, to be entered on another thread.

    That one queues in the device's default stream otherwise, which does not wait for what was queued here.
    """
    import torch

    if torch.accelerator.is_available():
        return torch.accelerator.current_stream()
    return nullcontext()


def kept(value: Any) -> Callable[[], Any]:
    """Keep a value as it is now. From a device only a copy is begun, and nothing is waited for.

    Args:
        value: a tensor, an array, a picture, or anything that does not change.

    Returns:
        A function that gives the value, on the host; call it on the thread that may wait.
    """
    if hasattr(value, "detach"):
        return _kept_tensor(value.detach())
    copy = value.copy() if hasattr(value, "copy") else value
    return lambda: copy


def _kept_tensor(tensor: Any) -> Callable[[], Any]:
    if tensor.device.type != "cuda":
        here = tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
        return lambda: here
    import torch

    with torch.cuda.device(tensor.device):
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        target.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()

    def read() -> Any:
        arrived.synchronize()
        return target

    return read


def finite_values(name: str, values: Any) -> Any:
    """The finite ones of some values, as a flat NumPy array in double precision.

    Args:
        name: for the message.
        values: a tensor, an array, or a sequence of numbers.

    Raises:
        ValueError: there are none, so there is no distribution.
    """
    import torch

    flat = torch.as_tensor(values).detach().reshape(-1).double()
    finite = flat[flat.isfinite()]
    if not finite.numel():
        raise ValueError(f"{name!r} holds no finite value, so there is no distribution")
    return finite.numpy()


def number_of(value: Any) -> float:
    """A Python float from a number, or from a tensor or array with one element; a truth value becomes 0 or 1.

    Raises:
        TypeError: it is not a real number.
        ValueError, RuntimeError: it has more than one element (as NumPy and torch say it).
        OverflowError: it is too large.
    """
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, Real):
        return float(item)
    raise TypeError(f"a {type(item).__name__} is not a real number")


def size_of(value: Any) -> int:
    """About how many bytes a value takes."""
    bytes_each = getattr(value, "nbytes", None)
    return 100 if bytes_each is None else 100 + int(bytes_each)
