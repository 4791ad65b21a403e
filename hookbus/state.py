"""What a checkpoint holds: collecting it from a run, and putting it back.

| key | what |
|---|---|
| meta | when, where, with what: counts, versions, hash of the config, scores, which weights earned the best |
| state_dict | the raw weights, whatever is in the model right now |
| ema_state_dict | the averaged weights, where somebody averages |
| optimizer, scheduler, scaler | their own state dicts |
| grads | gradients by parameter name, in the middle of an accumulation only |
| hooks | by instance name: state, version of its layout, package, config |
| rng | the random streams |
| loop | clock, metric windows, best scores, place in the data |
| ranks | of several processes, what each has for itself: see `hookbus.checkpoints.parts` |

A checkpoint is data: plain values and tensors, read with `weights_only=True`, so no code can be in it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hookbus
from hookbus.checkpoints import files
from hookbus.checkpoints.generations import generation_named
from hookbus.checkpoints.hook_states import load_hooks, states_of_hooks
from hookbus.checkpoints.parts import add_parts, with_own_part
from hookbus.checkpoints.plain import check_plain, plain_state
from hookbus.checkpoints.reading import content_of, existing, fitting_of, load_into, put_content, verify_checkpoint
from hookbus.checkpoints.restoring import load_grads, load_part
from hookbus.checkpoints.world_size import resized, size_of
from hookbus.errors import CheckpointError
from hookbus.model.layouts import spread_like
from hookbus.model.wrappers import unwrapped
from hookbus.training.rng import get_rng_state, set_rng_state

if TYPE_CHECKING:
    from hookbus.model.layouts import Layout
    from hookbus.run import Run

__all__ = [
    "check_resumable",
    "collect",
    "find_newest",
    "load_weights",
    "read_checkpoint",
    "restore",
    "weights_in",
    "write_checkpoint",
]

SCHEMA = 1

KNOWN_TO_BE_PLAIN = ("optimizer", "scheduler", "scaler", "hooks", "rng")
"""Parts that are looked through where they are made; a second look would be long beside the time a save may take."""


def collect(run: Run) -> dict[str, Any]:
    """Everything that is needed to go on exactly here. Tensors are references, not copies.

    Raises:
        CheckpointError: something in it is neither a plain value nor a tensor.
    """
    run.weights.wait()
    checkpoint: dict[str, Any] = {"meta": _meta(run), "state_dict": dict(run.weights.raw())}
    averaged = run.weights.averaged()
    if averaged is not None:
        checkpoint["ema_state_dict"] = dict(averaged)
    for name in ("optimizer", "scheduler", "scaler"):
        part = getattr(run, name)
        if part is not None:
            checkpoint[name] = plain_state(part.state_dict(), f"checkpoint[{name!r}]")
    if run.mid_accumulation and run.model is not None:
        named = unwrapped(run.model).named_parameters()
        checkpoint["grads"] = {name: p.grad for name, p in named if p.grad is not None}
    checkpoint["hooks"] = states_of_hooks(run)
    checkpoint["rng"] = get_rng_state()
    checkpoint["loop"] = run.state_dict()
    check_plain({key: part for key, part in checkpoint.items() if key not in KNOWN_TO_BE_PLAIN}, "checkpoint")
    add_parts(checkpoint, run)
    return checkpoint


def restore(run: Run, checkpoint: Mapping[str, Any]) -> None:
    """Put a run where a checkpoint was taken: weights, optimizer, hooks, data order, random streams.

    Raises:
        CheckpointError: the checkpoint does not fit the run; the message says what does not.
    """
    check_resumable(checkpoint)
    own = with_own_part(resized(checkpoint, run), run)
    checkpoint = spread_like(own, run.model, run.optimizer)
    if run.model is not None:
        load_into(run.model, checkpoint["state_dict"])
    for name in ("optimizer", "scheduler", "scaler"):
        load_part(run, name, checkpoint)
    if run.optimizer is not None and checkpoint["meta"]["step"]:
        run.optimizer._opt_called = True  # type: ignore[attr-defined]  # torch warns of schedulers that come before updates
    if run.model is not None:
        load_grads(run, checkpoint.get("grads", {}))
    run.load_state_dict(checkpoint["loop"])
    load_hooks(run, checkpoint["hooks"])
    set_rng_state(checkpoint["rng"])


def load_weights(run: Run, checkpoint: Mapping[str, Any], *, averaged: bool = False, strict: bool = True) -> None:
    """Start from the weights of a checkpoint, and from nothing else of it.

    Args:
        run: the run whose model gets them.
        checkpoint: a checkpoint, or a bare state dict.
        averaged: take the averaged weights instead of the raw ones.
        strict: every key must fit; otherwise those that do not are left out and reported.

    Raises:
        CheckpointError: a key does not fit, or none does, or there are no averaged weights.
    """
    assert run.model is not None
    weights = spread_like(weights_in(checkpoint, averaged=averaged), run.model, None)
    if strict:
        load_into(run.model, weights)
        return
    fitting, fresh = fitting_of(run.model, weights)
    unwrapped(run.model).load_state_dict(fitting, strict=False)
    left_out = sorted(set(weights) - set(fitting))
    if left_out or fresh:
        run.logger.warning("load_from: left out of the file: %s; kept as they were: %s", left_out, fresh)


def write_checkpoint(path: Path, checkpoint: Mapping[str, Any], generation: int) -> files.Sidecar:
    """Write a checkpoint so that it is either there and whole, or not there.

    Raises:
        OSError: it could not be written; an older file under this name is untouched.
    """
    run = checkpoint.get("loop", {}).get("id", "")
    return files.commit(path, partial(put_content, checkpoint), generation, run)


def read_checkpoint(
    path: Path | str, *, map_location: Any = "cpu", layout: Layout | None = None, verified: bool = False
) -> dict[str, Any]:
    """Read a checkpoint: verified against its sidecar, and without running any code from it.

    A file without a sidecar, such as one from another program, is read with a warning.

    Args:
        path: the file, or the directory of a generation.
        map_location: where its tensors go.
        layout: how the tensors of a generation are spread over processes; None for whole ones. Those of a file that
            is a checkpoint by itself are whole.
        verified: it was verified already, such as by the main process for all.

    Raises:
        CheckpointError: there is no such file, or it is not a checkpoint.
        CheckpointDamaged: its bytes are not those that were saved.
    """
    path = existing(path)
    if not verified:
        verify_checkpoint(path)
    content = {} if path.is_dir() else content_of(path, map_location=map_location)
    directory = path if path.is_dir() else generation_named(path, content)
    if directory is None:
        return content
    from hookbus.checkpoints.sharded import read_generation  # takes long to import

    return read_generation(directory, map_location=map_location, layout=layout)


def find_newest(directory: Path, *, map_location: Any = "cpu") -> tuple[Path, dict[str, Any], list[str]] | None:
    """The newest checkpoint of a directory that is whole.

    Args:
        directory: where they are.
        map_location: where its tensors go; "meta" for an outline.

    Returns:
        Its path, its content, and a sentence for each file that was passed over; None where there is no file.

    Raises:
        CheckpointError: there are files, and none of them is whole.
    """
    vouched = files.newest_first(directory)
    troubles = [
        f"{path}: its sidecar {path.name}.json is missing or damaged. Such a file is used only where it is named."
        for path in sorted(directory.glob("*.pth"))
        if path not in vouched and not path.name.startswith(".")
    ]
    for path in vouched:
        try:
            return path, read_checkpoint(path, map_location=map_location), troubles + _missing(directory)
        except CheckpointError as error:
            troubles.append(str(error))
    if troubles:
        raise CheckpointError("No checkpoint can be used:\n" + "\n".join(troubles))
    return None


def _missing(directory: Path) -> list[str]:
    """A sentence for each sidecar whose file is not there."""
    paths = [sidecar.with_suffix("") for sidecar in sorted(directory.glob("*.pth.json"))]
    return [
        f"{path}: only its sidecar {path.name}.json is there: the file was deleted, or the save was cut off."
        for path in paths
        if not path.exists()
    ]


def check_resumable(checkpoint: Mapping[str, Any]) -> None:
    """See that a run can go on from a checkpoint.

    Raises:
        CheckpointError: it holds weights alone, or has the layout of another version.
    """
    missing = [key for key in ("meta", "state_dict", "hooks", "rng", "loop") if key not in checkpoint]
    if missing:
        raise CheckpointError(
            f"This is not a checkpoint to resume from: it has no {', '.join(missing)}. To start from its weights "
            "alone, say load_from instead of resume."
        )
    schema = checkpoint["meta"].get("schema")
    if schema != SCHEMA:
        raise CheckpointError(
            f"The checkpoint has layout {schema}, and this hookbus {hookbus.__version__} reads layout {SCHEMA}. "
            f"It was written by hookbus {checkpoint['meta'].get('hookbus')}: use that version."
        )


def weights_in(checkpoint: Mapping[str, Any], *, averaged: bool = False) -> Mapping[str, Any]:
    """The weights of a checkpoint, or of a bare state dict.

    Args:
        checkpoint: the one or the other.
        averaged: take the averaged weights instead of the raw ones.

    Raises:
        CheckpointError: there are no averaged weights.
    """
    weights: Mapping[str, Any] = checkpoint.get("state_dict", checkpoint)
    if not averaged:
        return weights
    if "ema_state_dict" not in checkpoint:
        raise CheckpointError("weights: averaged was asked for, but the file has no averaged weights.")
    return {**weights, **checkpoint["ema_state_dict"]}


# -- parts -------------------------------------------------------------------------------------------


def _meta(run: Run) -> dict[str, Any]:
    clock = run.clock
    return {
        "schema": SCHEMA,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "epoch": clock.epochs_done,
        "iter": clock.iters_done,
        "step": clock.steps_done,
        "samples": clock.samples_done,
        "seed": run.seed,
        **size_of(run),
        "hookbus": hookbus.__version__,
        "torch": str(torch.__version__),
        "config_hash": config_hash(run.plain_config()),
        "metrics": dict(run.metrics.results),
        "best_weights": {metric: best.weights for metric, best in run.best.items()},
    }


def config_hash(config: Mapping[str, Any]) -> str:
    """A hash of the resolved configuration, in hex; "" where the run has none."""
    if not config:
        return ""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()
