"""How much arithmetic is an iteration, and what could the device do?

A multiplication and an addition are two operations. Usable without hookbus.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["FlopCount", "peak_of"]

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12,
    "H100": 989e12, "A100": 312e12, "A10G": 70e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "V100 PCIE": 112e12,
    "V100": 125e12, "T4": 65e12,
}  # fmt: skip
"""Operations per second of the tensor cores with 16 bits and dense matrices, by the data sheets of the makers, under
words of the name of the device; the first entry counts of which all are there."""


class FlopCount:
    """Counts the arithmetic of everything that is done between its beginning and `stop`, backward included.

    Counted are matrix products, convolutions and attention, by their shapes; what is masked counts as well. What is
    compiled runs as it would without `torch.compile` for so long: code that is called while somebody counts is never
    compiled again (torch 2.13).
    """

    def __init__(self) -> None:
        self._mode = FlopCounterMode(
            display=False, custom_mapping={_ATTENTION: _attention, _ATTENTION_BACKWARD: _attention_backward}
        )
        self._mode.mod_tracker = _Everything()  # type: ignore[assignment]
        self._exit = ExitStack()
        self._exit.enter_context(torch.compiler.set_stance("force_eager"))
        self._exit.enter_context(self._mode)

    def stop(self) -> int:
        """Stop counting. Returns the number of operations."""
        self._exit.close()
        return self._mode.get_total_flops()


class _Everything:
    """In the place of a tracker of modules, which would put hooks into all of them: one sum is enough."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        """There is nothing to begin."""

    def __exit__(self, *_: object) -> None:
        """There is nothing to end."""


def peak_of(device_name: str) -> float | None:
    """Operations per second that a device can reach with 16 bits; None where that is not known.

    Args:
        device_name: as torch gives it. A part of a divided GPU (MIG) can reach only a part of it, nobody says which.
    """
    words = set(re.split(r"[ -]", device_name))
    if "MIG" in words:
        return None
    return next((peak for name, peak in PEAKS.items() if words.issuperset(name.split())), None)


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Two products: of query and key, and of what comes of it and value. Shapes are (batch, heads, length, width)."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def _attention_backward(
    _gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Five products: the first one again, two for the gradients of its factors, two for those of the second."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (3 * width + 2 * value[3])
