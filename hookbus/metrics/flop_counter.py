"""Floating-point operations that are executed in a period of time. A multiply-add counts as two operations."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

_CPU_FLASH_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_FLASH_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class FlopCounter:
    """Count the floating-point operations between construction and `stop()`, backward included.

    Matrix products, convolutions and attention are counted by their shapes, masked elements included. Compiled
    functions run eagerly while counting.
    """

    def __init__(self) -> None:
        self._mode = FlopCounterMode(
            display=False,
            custom_mapping={
                _CPU_FLASH_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
                _CPU_FLASH_ATTENTION_BACKWARD: lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
            },
        )
        # The tracker of FlopCounterMode registers hooks on all modules to count per module; only the total is needed.
        tracker = nullcontext()
        tracker.parents = frozenset({"Global"})  # type: ignore[attr-defined]
        self._mode.mod_tracker = tracker  # type: ignore[assignment]
        self._exit = ExitStack()
        # Without this, torch 2.13 never compiles a function again that was called under a TorchDispatchMode.
        self._exit.enter_context(torch.compiler.set_stance("force_eager"))
        self._exit.enter_context(self._mode)

    @property
    def total(self) -> int:
        """Number of floating-point operations so far."""
        return self._mode.get_total_flops()

    def stop(self) -> int:
        """Stop counting and return the number of floating-point operations. Idempotent."""
        self._exit.close()
        return self.total
