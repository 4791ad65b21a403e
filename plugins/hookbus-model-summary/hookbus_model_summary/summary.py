"""The summary of a model: rows of its modules, totals and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from hookbus_model_summary.forward_pass import ModuleCalls, Shape, record_forward
from hookbus_model_summary.parameters import Parameters, count_bytes, count_parameters, has_uninitialized

ALL_LEVELS = -1


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """Row of a module.

    Attributes:
        name: Name of the module in the model; "" for the model itself.
        type: Name of its class.
        parameters: Numbers of its parameters.
        calls: Its calls in the example forward pass; None if it was not called.
    """

    name: str
    type: str
    parameters: Parameters
    calls: ModuleCalls | None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Summary of a model.

    Attributes:
        type: Name of the class of the model.
        rows: Rows of the modules, in the order of `named_modules()`.
        parameters: Numbers of the parameters of the model.
        parameter_bytes: Size of the parameters in bytes.
        buffer_bytes: Size of the buffers in bytes.
        inputs: Shapes of the inputs of the model in the example forward pass; () if they are unknown.
        flops: FLOPs of the example forward pass; None if there was none.
        note: Reason why there was none; "" if there was one.
    """

    type: str
    rows: tuple[ModuleSummary, ...]
    parameters: Parameters
    parameter_bytes: int
    buffer_bytes: int
    inputs: tuple[Shape, ...] = ()
    flops: int | None = None
    note: str = ""


def summarize(
    model: nn.Module, forward: Callable[[], object] | None = None, *, max_depth: int = 1, note: str = ""
) -> ModelSummary:
    """Summarize a model.

    Args:
        model: The model, without wrappers.
        forward: Function that calls the model, for shapes and FLOPs. Default: None, for parameters only. It is not
            called if a parameter is uninitialized, because the call would initialize it.
        max_depth: Number of levels of nested modules to list; -1 for all. Default: 1.
        note: Reason why `forward` is None. Default: "".
    """
    counts = count_parameters(model)
    calls, note = _try_forward(model, forward, note)
    root = calls.get("")
    rows = tuple(
        ModuleSummary(name, type(module).__name__, counts[name], calls.get(name))
        for name, module in _iter_listed(model, max_depth)
    )
    return ModelSummary(
        type=type(model).__name__,
        rows=rows,
        parameters=counts[""],
        parameter_bytes=count_bytes(model.parameters()),
        buffer_bytes=count_bytes(model.buffers()),
        inputs=() if root is None else root.inputs,
        flops=None if note else root.flops if root is not None else _sum_flops(calls),
        note=note,
    )


def _iter_listed(model: nn.Module, max_depth: int) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules to list; the model itself if it has no submodule."""
    nested = [(name, module) for name, module in model.named_modules() if name]
    for name, module in nested or [("", model)]:
        if max_depth == ALL_LEVELS or name.count(".") < max_depth:
            yield name, module


def _try_forward(
    model: nn.Module, forward: Callable[[], object] | None, note: str
) -> tuple[Mapping[str, ModuleCalls], str]:
    """Return the calls of a forward pass, and the reason if there are none."""
    if forward is None:
        return {}, note or "no example batch"
    if has_uninitialized(model):
        return {}, "the forward pass would initialize the lazy parameters"
    try:
        return record_forward(model, forward), ""
    except Exception as error:  # the summary is an observation: the training reports the error of its own forward pass
        return {}, f"the forward pass of an example failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _sum_flops(calls: Mapping[str, ModuleCalls]) -> int:
    """Return the FLOPs of the outermost modules that were called."""
    outermost = [name for name in calls if not any(name.startswith(f"{other}.") for other in calls if other != name)]
    return sum(calls[name].flops for name in outermost)
