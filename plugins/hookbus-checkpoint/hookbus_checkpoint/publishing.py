"""Export of the best weights as safetensors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from hookbus import BestResult, Run
from hookbus.checkpoint import atomic_write, flatten_weights, read_checkpoint
from hookbus.distributed import to_full_tensors
from hookbus.errors import CheckpointError, format_path


def publish(run: Run, path: Path, best: tuple[str, BestResult] | None) -> None:
    """Write the weights of the best result, or the final weights without one, averaged if a hook averages.

    The metadata of the file contains the metric, its value, and the step. Tied weights are written under each name.
    Must be called on every rank: sharded weights are all-gathered, and rank 0 writes.

    Raises:
        CheckpointError: If the best checkpoint cannot be loaded, or the file cannot be written.
    """
    # References to the model are written, which contains other weights in training mode of some optimizers.
    with run.weights.eval_mode():
        weights, metadata = _get_weights(run, best)
        run.ranks.call_on_main(f"the file {path}", partial(_write, path, run.id, to_full_tensors(weights), metadata))


def _write(path: Path, run: str, weights: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    # safetensors rejects tensors that share memory, so each is cloned.
    separate = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    content = save(separate, metadata={key: str(value) for key, value in metadata.items()})
    try:
        atomic_write(path, lambda file: file.write(content), 0, run)
    except OSError as error:
        problem = f"{format_path(path)} could not be written: {error}. {len(content):,} bytes are required."
        raise CheckpointError(problem) from error


def _get_weights(run: Run, best: tuple[str, BestResult] | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if best is None or best[1].path is None:
        # An averaging hook may still update its averages on another thread.
        run.weights.wait()
        return _merge_tensors(run.weights.raw(), run.weights.averaged()), {"step": run.steps_done}
    metric, result = best
    checkpoint = read_checkpoint(best[1].path)
    # The weights that were evaluated: a checkpoint contains raw and averaged ones, or evaluated and raw ones.
    kind, _, hook = result.weights.partition("/")
    parts = {"averaged": "ema_state_dict", "raw": "training_weights"}
    other = checkpoint["averages"][hook] if hook else checkpoint.get(parts.get(kind, ""))
    weights = _merge_tensors(flatten_weights(checkpoint["state_dict"]), flatten_weights(other or {}))
    return weights, {"metric": metric, "value": result.value, "step": result.step}


def _merge_tensors(raw: dict[str, Any], averaged: dict[str, Any] | None) -> dict[str, Tensor]:
    return {name: value for name, value in {**raw, **(averaged or {})}.items() if isinstance(value, Tensor)}
