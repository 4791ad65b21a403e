"""First line of a training: work directory, model, device and length."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from torch import nn
from torch.nn.parameter import is_lazy

from hookbus import Run
from hookbus.distributed import unwrap_model, world_size
from hookbus.errors import format_path
from hookbus.writers import format_quantity
from hookbus_logger.format import format_compact


def format_run(run: Run, separator: str, width: int | None = None) -> str:
    """Return a line that describes a training, or several lines that are broken between its parts; "" without a model.

    Args:
        run: Active run.
        separator: Text between two parts.
        width: Width in characters. Default: None, for one line.
    """
    lines: list[str] = []
    for part in _describe(run, run.model) if run.model is not None else ():
        longer = f"{lines[-1]}{separator}{part}" if lines else part
        if lines and width is not None and cell_len(longer) > width:
            lines.append(f"  {part}")
        else:
            lines[-1:] = [longer]
    return "\n".join(lines)


def _describe(run: Run, model: nn.Module) -> Iterator[str]:
    if run.work_dir is not None:
        yield format_path(run.work_dir.path)
    parameters = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    name = type(unwrap_model(model)).__name__
    count = sum(parameter.numel() for parameter in parameters)
    yield f"{name}, {format_quantity(count, 'parameter')}"
    processes = f"{world_size()} x " if world_size() > 1 else ""
    yield processes + (parameters[0].device.type if parameters else "cpu")
    if length := _format_length(run):
        yield length


def _format_length(run: Run) -> str:
    """Return the limit of the run; "" if there is none."""
    if run.max_tokens is not None:
        return f"{format_compact(run.max_tokens)} tokens"
    if run.max_epochs is None:
        return "" if run.max_iters is None else format_quantity(run.max_iters, "iteration")
    epochs = format_quantity(run.max_epochs, "epoch")
    return f"{epochs} x {format_quantity(run.epoch_length, 'iteration')}" if run.epoch_length else epochs
