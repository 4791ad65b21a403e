"""Environment of a run for its report: versions, device, processes and memory."""

from __future__ import annotations

import os
import platform
import socket
import sys
from typing import TYPE_CHECKING, Any

import hookbus
from hookbus._utils.packages import package_label
from hookbus._utils.system import resource

if TYPE_CHECKING:
    from hookbus._run.run import Run

KILOBYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of the resident size that the system reports: bytes on macOS, kilobytes elsewhere."""


def describe_environment(run: Run) -> list[tuple[str, str]]:
    """Return names and values that describe where a run was executed."""
    torch = sys.modules.get("torch")
    rows = [
        ("hookbus", hookbus.__version__),
        ("Python", platform.python_version()),
        *([("PyTorch", str(torch.__version__))] if torch is not None else []),
        ("device", _describe_device(run.device)),
        ("processes", str(run.ranks.world_size)),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"),
        ("host", socket.gethostname()),
        ("command", " ".join(sys.argv)),
        ("run", run.id),
    ]
    packages = {package_label(hook): None for hook in run.bus.hooks.values()}
    return [*rows, *([("hook packages", ", ".join(sorted(packages)))] if packages else [])]


def describe_memory(run: Run) -> list[tuple[str, str]]:
    """Return the sizes of model and optimizer, and the peaks of the memory of this process, with their units."""
    parameters = [] if run.model is None else [*run.model.parameters()]
    states = [value for optimizer in run.optimizers.values() for value in _iter_tensors(optimizer)]
    rows = []
    if parameters:
        count = sum(parameter.numel() for parameter in parameters)
        rows.append(("parameters", f"{count:,} in {_format_size(_get_size(parameters))}"))
    if states:
        rows.append(("optimizer state", _format_size(_get_size(states))))
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        rows.append(("peak of allocated GPU memory", _format_size(torch.cuda.max_memory_allocated())))
        rows.append(("peak of reserved GPU memory", _format_size(torch.cuda.max_memory_reserved())))
    peak = _get_peak_size()
    return [*rows, *([("peak of the main process", _format_size(peak))] if peak else [])]


def _describe_device(device: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and str(device).startswith("cuda") and torch.cuda.is_initialized():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return "cpu" if device is None else str(device)


def _iter_tensors(optimizer: Any) -> list[Any]:
    states = getattr(optimizer, "state", {}).values()  # the view of an optimizer of another library has none
    values = [value for state in states if isinstance(state, dict) for value in state.values()]
    return [value for value in values if hasattr(value, "element_size")]


def _get_size(tensors: list[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _format_size(size: float) -> str:
    units = {"GB": 1e9, "MB": 1e6, "kB": 1e3}
    unit, factor = next(((unit, factor) for unit, factor in units.items() if size >= factor), ("bytes", 1.0))
    return f"{size / factor:,.1f} {unit}" if factor > 1 else f"{size:.0f} bytes"


def _get_peak_size() -> int:
    """Return the maximum resident size of this process in bytes, 0 if the system does not report it."""
    if resource is None:
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * KILOBYTES_PER_UNIT
