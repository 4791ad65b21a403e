"""The weights alone, in a file that everybody can read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from hookbus.checkpoints.files import commit
from hookbus.errors import CheckpointError
from hookbus.model.layouts import whole
from hookbus.run import Best, Run
from hookbus.state import read_checkpoint

__all__ = ["NAME", "publish"]

NAME = "model.safetensors"


def publish(run: Run, path: Path, best: tuple[str, Best] | None) -> None:
    """Write the weights that earned the best score; without one, those at the end, averaged where a hook averages.

    The metric, its value and the step are in the file as metadata. Tensors that share memory are written each. Called
    on every process: the main one writes, and weights that are spread over them come together.

    Args:
        run: the run that ended.
        path: the file, which gets a sidecar.
        best: the metric and its best result.

    Raises:
        CheckpointError: the best file cannot be read, or this one cannot be written.
    """
    weights, about = _weights_of(run, best)
    run.ranks.by_main(f"the file {path}", partial(_write, path, run.id, whole(weights), about))


def _write(path: Path, run: str, weights: dict[str, Tensor], about: dict[str, Any]) -> None:
    separate = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    content = save(separate, metadata={key: str(value) for key, value in about.items()})
    try:
        commit(path, lambda file: file.write(content), 0, run)
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error}. It needs {len(content):,} bytes.") from error


def _weights_of(run: Run, best: tuple[str, Best] | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if best is None or best[1].path is None:
        run.weights.wait()
        return _tensors(run.weights.raw(), run.weights.averaged()), {"step": run.steps_done}
    metric, result = best
    assert result.path is not None
    checkpoint = read_checkpoint(result.path)
    averaged = checkpoint.get("ema_state_dict") if result.weights == "averaged" else None
    return _tensors(checkpoint["state_dict"], averaged), {"metric": metric, "value": result.value, "step": result.step}


def _tensors(raw: dict[str, Any], averaged: dict[str, Any] | None) -> dict[str, Tensor]:
    return {name: value for name, value in {**raw, **(averaged or {})}.items() if isinstance(value, Tensor)}
