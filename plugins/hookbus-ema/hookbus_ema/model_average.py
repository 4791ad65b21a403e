"""Averages of the model of a run: load them from a checkpoint, and follow changes of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from hookbus import Run
from hookbus.checkpoint import CheckpointStore, flatten_weights, read_checkpoint, schema, wrap_invalid_data
from hookbus.distributed import match_names, strip_wrappers
from hookbus.errors import CheckpointError
from hookbus_ema.average import WeightAverage

_mapping = schema.mapping_of(schema.any_value)
_check_records = schema.mapping_of(schema.record({"state": _mapping}, {"type": schema.string()}))


def restore_average(average: WeightAverage, model: nn.Module, state: Mapping[str, Any], hook: str) -> WeightAverage:
    """Load the state of a checkpoint into a new average of a model, for a bit-exact resume.

    Raises:
        CheckpointError: If the state belongs to another model.
    """
    try:
        average.load_state_dict({**state, "averaged": _rename(model, state["averaged"])})
    except ValueError as error:
        raise CheckpointError(f"hook {hook!r}: {error}") from None
    return average


def load_average(average: WeightAverage, model: nn.Module, path: Path, logger: logging.Logger, hook: str = "") -> None:
    """Load the averages of a checkpoint and their number of steps, which continues the warm-up.

    The averages are those of the hook of the same name if the checkpoint contains several. Tensors that are missing on
    either side, or differ in shape, are skipped and logged.

    Raises:
        CheckpointError: If the checkpoint cannot be loaded or contains no matching averages.
    """
    own = average.averaged()
    steps, saved, matching = _match(model, own, read_checkpoint(path), path, hook)
    average.load_state_dict({"steps": steps, "averaged": {**own, **matching}})
    skipped, missing = sorted(saved.keys() - matching.keys()), sorted(own.keys() - matching.keys())
    if skipped or missing:
        logger.warning("resume_from: skipped: %s; initialized from the weights of the model: %s.", skipped, missing)


def check_average_file(model: nn.Module, path: Path, hook: str = "") -> None:
    """Check that a checkpoint contains averages of a model, without reading their values.

    Raises:
        CheckpointError: If it cannot be read or contains no matching averages.
    """
    _match(model, model.state_dict(), CheckpointStore(path.parent).load_on_meta(path), path, hook)


def _match(
    model: nn.Module, own: Mapping[str, Any], checkpoint: Mapping[str, Any], path: Path, hook: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Return the number of steps of a checkpoint, its averages, and those that match the weights of a model."""
    if "ema_state_dict" not in checkpoint:
        raise CheckpointError(
            f"resume_from: {path} contains no averaged weights (ema_state_dict), only "
            f"{', '.join(map(str, checkpoint))}. Set a checkpoint that was written with the ema hook, or remove "
            "`resume_from` to start from the weights of the model."
        )
    with wrap_invalid_data(path):
        _mapping(checkpoint["ema_state_dict"], "ema_state_dict")
        steps = _get_steps(checkpoint, hook)
        _mapping(further := checkpoint.get("averages", {}), "averages")
        _mapping(averages := further.get(hook, checkpoint["ema_state_dict"]), f"averages.{hook}")
    saved = _rename(model, flatten_weights(averages))
    matching = {
        name: value for name, value in saved.items() if name in own and own[name].shape == getattr(value, "shape", None)
    }
    if not matching:
        raise CheckpointError(f"resume_from: no average in {path} matches the model. Set a checkpoint of this model.")
    return steps, saved, matching


def _rename(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return averages by the names of a model, whose modules may be wrapped in another way than those of the file."""
    names = match_names(model, saved)
    return {names.get(name, name): value for name, value in saved.items()}


def _get_steps(checkpoint: Mapping[str, Any], hook: str) -> int:
    """Return the steps counted by the EMA hook of a name, or by the first one, else the steps of the run.

    The result is 0 if the checkpoint contains neither.
    """
    # By type and not by name: users may rename hooks.
    records, meta = checkpoint.get("hooks", {}), checkpoint.get("meta", {})
    _check_records(records, "hooks")
    own = {name: entry["state"].get("steps") for name, entry in records.items() if entry.get("type") == "EMAHook"}
    steps = [own[hook]] if hook in own else list(own.values())
    schema.record({}, {"step": schema.integer()})(meta, "meta")
    count: int = steps[0] if steps else meta.get("step", 0)
    schema.integer()(count, "hooks.ema.state.steps")
    return count


def sync_with_model(
    average: WeightAverage, model: nn.Module, build: Callable[[nn.Module], WeightAverage], logger: logging.Logger
) -> WeightAverage:
    """Return an average of the current tensors of a model, which `build` creates if they have changed.

    Tensors that the model still contains keep their averages. New tensors, also under an existing name, start at their
    current values. A warning lists them, except for tensors that are copied and not averaged, such as a buffer that
    each forward creates.

    Returns:
        The same average if the tensors are the same, else a new one. The old one is closed.
    """
    # While the averages are in the model, the raw weights are stored in `average` and would be lost with it.
    if average.raw() is not None or average.averages_model(model):
        return average
    old_names, current = average.averaged().keys(), build(model)
    average.close()
    added = current.transfer_from(average)
    removed = sorted(old_names - current.averaged().keys())
    if added or removed:
        logger.warning("The parameters of the model changed. Now averaged: %s; no longer averaged: %s.", added, removed)
    return current


def report_unaveraged(average: WeightAverage, reported: set[str], logger: logging.Logger, hook: str) -> None:
    """Log which tensors cannot be averaged, except for those in `reported`, to which they are added."""
    new = [f"{name} ({reason})" for name, reason in average.unaveraged.items() if name not in reported]
    reported.update(average.unaveraged)
    if new:
        shown = f"{', '.join(new[:10])}{f' and {len(new) - 10} more' if len(new) > 10 else ''}"
        total = len(average.averaged())
        logger.warning("%s: %s of %s tensors cannot be averaged and are copied: %s.", hook, len(new), total, shown)


def get_unwrapped_model(run: Run) -> nn.Module:
    """Return the model of a run without its wrappers. The run must have a model."""
    assert run.model is not None
    return strip_wrappers(run.model)


def is_initialized(model: nn.Module) -> bool:
    """Whether all tensors of a model are initialized; lazy modules initialize theirs in the first forward."""
    return not any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))
