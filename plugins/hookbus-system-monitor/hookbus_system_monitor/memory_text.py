"""Log lines on memory in the format of MMDetection's MemoryProfilerHook.

Usable without hookbus.
"""

from __future__ import annotations

from hookbus_system_monitor.memory import Memory
from hookbus_system_monitor.readings import GB, MB

__all__ = ["format_memory_fields", "format_memory_sentence"]


def format_memory_sentence(memory: Memory, swap: Memory, process: int) -> str:
    """Format the memory usage in sentences.

    Args:
        memory: Memory of the system.
        swap: Swap space of the system.
        process: Resident memory of this process in bytes.
    """
    return (
        f"The system has {memory.total / GB:.0f} GB ({_format_mb(memory.available)} + {_format_mb(memory.used)}) of "
        f"memory and {swap.total / GB:.0f} GB ({_format_mb(swap.available)} + {_format_mb(swap.used)}) of swap memory "
        f"in total. Currently {_format_mb(memory.used)} ({memory.percent:.1f}%) of memory and {_format_mb(swap.used)} "
        f"({swap.percent:.1f}%) of swap memory were consumed. "
        f"And the current training process consumed {_format_mb(process)} of memory."
    )


def format_memory_fields(memory: Memory, swap: Memory, process: int) -> str:
    """Format the memory usage as named fields.

    Args:
        memory: Memory of the system.
        swap: Swap space of the system.
        process: Resident memory of this process in bytes.
    """
    return (
        f"Memory information available_memory: {_format_mb(memory.available)}, used_memory: {_format_mb(memory.used)}, "
        f"memory_utilization: {memory.percent:.1f} %, available_swap_memory: {_format_mb(swap.available)}, "
        f"used_swap_memory: {_format_mb(swap.used)}, swap_memory_utilization: {swap.percent:.1f} %, "
        f"current_process_memory: {_format_mb(process)}"
    )


def _format_mb(size: int) -> str:
    return f"{round(size / MB)} MB"
