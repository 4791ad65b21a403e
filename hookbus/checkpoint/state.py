"""Contents of a checkpoint: build it from a run, and restore a run from it.

| key | content |
|---|---|
| meta | counts, time, versions, hash of the configuration, metrics, and which weights reached the best score |
| state_dict | raw weights, even while averaged weights are applied; in a best file, the evaluated weights |
| training_weights | raw weights that differ from `state_dict`, if a hook has exchanged weights for the best score |
| ema_state_dict | averaged weights, if a hook maintains them |
| averages | averaged weights of further hooks, by name |
| optimizer, scheduler, scaler | their state dicts; `training_weights` of an optimizer with modes |
| loss | state dict of the loss function, if it has parameters or buffers |
| grads | gradients by parameter name, only during gradient accumulation; those of `loss` begin with `.loss.` |
| hooks | by instance name: state, state version, package, configuration |
| state | state of a custom loop by name, as passed to `bus.run(state=...)` |
| rng | RNG states |
| loop | clock, metric windows, best scores, position in the data |
| ranks | rank-specific state in distributed training, see `hookbus.checkpoint.rank_state` |

`state_dict`, `ema_state_dict`, `optimizer` and `scheduler` of named objects map each name to its state.

A checkpoint consists of built-in Python types and tensors and is loaded with `weights_only=True`, which executes no
code from the file.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hookbus
from hookbus._utils.schema import InvalidDataError, any_value, mapping_of
from hookbus.checkpoint import atomic_files, hook_states, sidecars
from hookbus.checkpoint.components import check_components, collect_components, load_components
from hookbus.checkpoint.contents import check_contents, wrap_invalid_data
from hookbus.checkpoint.generations import resolve_pointer
from hookbus.checkpoint.load import load_file, resolve_path, save_file, verify_checkpoint
from hookbus.checkpoint.plain_data import check_has_data, validate_plain_data
from hookbus.checkpoint.rank_state import add_rank_states, get_parallel_metadata, reshard, select_rank_state
from hookbus.checkpoint.weights import (
    add_versions,
    check_averages,
    check_compatible,
    flatten_weights,
    get_structure,
    get_versions,
    load_into,
    matching_weights,
    nest_weights,
)
from hookbus.data.rng import get_rng_state, set_rng_state
from hookbus.distributed.sharding import shard_like
from hookbus.errors import CheckpointCorruptedError, CheckpointError, format_path

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.distributed.sharding import ShardingSpec

FORMAT_VERSION = 1
"""Version of the checkpoint format, stored as `meta["schema"]`."""

REQUIRED_KEYS = ("meta", "state_dict", "hooks", "rng", "loop")
"""Keys without which a run cannot resume from a checkpoint."""

TRAINING_WEIGHTS = "training_weights"
"""Key of the weights of training in a checkpoint whose `state_dict` contains others, see `EvaluatedWeights`."""

VALIDATED_KEYS = ("optimizer", "scheduler", "scaler", "loss", "state", "hooks", "rng")
"""Components that were validated when they were built. A second pass would take a large share of the time of a save."""


def build_checkpoint(run: Run) -> dict[str, Any]:
    """Collect the state for a bit-exact resume. Tensors are references, not copies.

    Call it and use its result inside `run.weights.eval_mode()`: files contain the weights of evaluation mode.

    Raises:
        CheckpointError: If the state contains an object that is neither a built-in Python type nor a tensor.
    """
    # Another thread may be updating the averaged weights.
    run.weights.wait()
    checkpoint = {"meta": build_meta(run), **_collect_weights(run), **collect_averages(run)}
    checkpoint |= {**collect_components(run), **collect_hooks_and_loop(run)}
    validate_plain_data({key: part for key, part in checkpoint.items() if key not in VALIDATED_KEYS}, "checkpoint")
    add_rank_states(checkpoint, run)
    return checkpoint


def _collect_weights(run: Run) -> dict[str, Any]:
    """Return the key `state_dict`, and `training_weights` if a hook has exchanged weights for the best score."""
    raw, names = run.weights.raw(), run.model_names
    evaluated = run.weights.evaluated.select(raw)
    weights = nest_weights({**raw, **evaluated}, names)
    if not names:
        weights = add_versions(weights, get_versions(raw))
    training = nest_weights({name: raw[name] for name in evaluated}, names)
    return {"state_dict": weights, **({TRAINING_WEIGHTS: training} if evaluated else {})}


def restore_checkpoint(run: Run, checkpoint: Mapping[str, Any]) -> None:
    """Restore a run from a checkpoint: weights, optimizer, hooks, data position, RNG states.

    Raises:
        CheckpointError: If the checkpoint does not match the run.
    """
    check_resumable(checkpoint)
    hook_states.restore_structure(run, checkpoint["hooks"])
    hook_states.check_hook_states(run, checkpoint["hooks"])
    own = dict(select_rank_state(reshard(checkpoint, run), run))
    versions = get_versions(own["state_dict"])
    training = flatten_weights(own.pop(TRAINING_WEIGHTS, {}))
    evaluated = flatten_weights(own["state_dict"])
    own["state_dict"] = {**evaluated, **training}
    checkpoint = shard_like(own, run.model, run.optimizer)
    _check_compatible(run, checkpoint)
    # A best file that an interrupted save did not complete is written again with them.
    run.weights.evaluated.load(shard_like({name: evaluated[name] for name in training}, run.model, None))
    # The state dict contains the weights of evaluation mode.
    run.weights.modes.end_training()
    if run.model is not None:
        with hook_states.explain_changed_model(checkpoint):
            load_into(run.model, checkpoint["state_dict"], versions)
    load_components(run, checkpoint)
    for optimizer in run.optimizers.values() if checkpoint["meta"]["step"] else ():
        # torch warns if a scheduler steps before the optimizer; this optimizer has stepped before the checkpoint.
        optimizer._opt_called = True  # type: ignore[attr-defined]
    load_hooks_and_loop(run, checkpoint)


def _check_compatible(run: Run, checkpoint: Mapping[str, Any]) -> None:
    """Raise if the weights or the states of the components do not match a run, before anything is loaded."""
    if run.model is not None:
        with hook_states.explain_changed_model(checkpoint):
            check_compatible(run.model, checkpoint["state_dict"])
        with wrap_invalid_data():
            check_averages(run.model, flatten_weights(checkpoint.get("ema_state_dict", {})), "ema_state_dict")
            for name, weights in checkpoint.get("averages", {}).items():
                check_averages(run.model, flatten_weights(weights), f"averages.{name}")
    check_components(run, checkpoint)


def load_weights(run: Run, checkpoint: Mapping[str, Any], *, averaged: bool = False, strict: bool = True) -> None:
    """Load the weights of a checkpoint into the model of a run, without the remaining state.

    Args:
        run: Run with a model.
        checkpoint: Checkpoint or state dict.
        averaged: Load the averaged weights instead of the raw ones. Default: False.
        strict: Require all keys to match; otherwise log and ignore the keys that do not match. Default: True.

    Raises:
        CheckpointError: If a key does not match and `strict` is set, if no key matches, or if `averaged` is set and
            the checkpoint contains no averaged weights.
    """
    assert run.model is not None
    weights = shard_like(extract_weights(checkpoint, averaged=averaged), run.model, None)
    versions = get_versions(checkpoint.get("state_dict", checkpoint))
    if strict:
        load_into(run.model, weights, versions)
        return
    matching, ignored, missing = matching_weights(run.model, weights)
    load_into(run.model, matching, versions, strict=False)
    if ignored or missing:
        run.logger.warning("load_from: ignored keys of the file: %s; unchanged keys of the model: %s", ignored, missing)


def write_checkpoint(path: Path, checkpoint: Mapping[str, Any], generation: int) -> sidecars.Sidecar:
    """Write a checkpoint atomically.

    Args:
        path: Final path of the file.
        checkpoint: Checkpoint to write.
        generation: Generation of the sidecar.

    Returns:
        Sidecar of the written file.

    Raises:
        OSError: If the file could not be written; an existing file is unchanged.
    """
    run = checkpoint.get("loop", {}).get("id", "")
    return atomic_files.atomic_write(path, partial(save_file, checkpoint), generation, run)


def read_checkpoint(
    path: Path | str, *, map_location: Any = "cpu", sharding: ShardingSpec | None = None, verify: bool = True
) -> dict[str, Any]:
    """Load a checkpoint and verify its checksums, without executing code from it.

    A checkpoint without its sidecar is loaded with a warning; a file of another program, such as a bare state dict,
    has none.

    Args:
        path: Path of the file, or of the directory of a generation.
        map_location: Device of the tensors. Default: "cpu".
        sharding: Sharding of the tensors of a generation; None for full tensors. A checkpoint in a single file contains
            full tensors.
        verify: Verify the checksums. Default: True.

    Raises:
        CheckpointError: If the file does not exist, or is not a checkpoint.
        CheckpointCorruptedError: If the file is corrupted.
    """
    path = resolve_path(path)
    if verify:
        verify_checkpoint(path)
    content = {} if path.is_dir() else load_file(path, map_location=map_location)
    directory = path if path.is_dir() else resolve_pointer(path, content)
    if directory is not None:
        # torch.distributed.checkpoint takes long to import.
        from hookbus.checkpoint.sharded import read_generation

        content = read_generation(directory, map_location=map_location, sharding=sharding)
    if map_location != "meta":
        _check_has_data(path, content)
    return content


def _check_has_data(path: Path, content: Mapping[str, Any]) -> None:
    try:
        check_has_data(content)
    except InvalidDataError as error:
        raise CheckpointCorruptedError(f"{path}: {error}.") from None


def _check_if_complete(checkpoint: Mapping[str, Any]) -> None:
    """Raise if a value of a checkpoint is invalid; a file of weights, or of another version, is not checked."""
    if all(key in checkpoint for key in REQUIRED_KEYS) and _get_format_version(checkpoint) == FORMAT_VERSION:
        check_contents(checkpoint)


@contextmanager
def prefix_path(path: Path) -> Iterator[None]:
    """Add the path of the checkpoint to an error about its content."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{format_path(path)}: {error}") from None


def iter_checkpoints(
    directory: Path, run: str = "", *, map_location: Any = "cpu"
) -> Iterator[tuple[Path, dict[str, Any] | None, str]]:
    """Yield the checkpoints of a directory: first those without a valid sidecar, then the others, newest first.

    Args:
        directory: Directory to search.
        run: ID of a run, whose checkpoints are yielded; "" for those of all runs. Default: "".
        map_location: Device of the tensors; "meta" to load their metadata only. Default: "cpu".

    Yields:
        Path, content, and a message; the content is None if the file cannot be used, and the message is then the
        reason.
    """
    with_sidecar = sidecars.list_newest_first(directory)
    for path in sorted(directory.glob("[!.]*.pth")):
        if path not in with_sidecar:
            reason = f"{path}: {path.name}.json is missing or corrupted. A file without a valid sidecar is used only if"
            yield path, None, f"{reason} its path is passed."
    for path in with_sidecar:
        if run and (sidecar := sidecars.read_sidecar(path)) is not None and sidecar.run not in ("", run):
            continue
        try:
            checkpoint = read_checkpoint(path, map_location=map_location)
            with prefix_path(path):
                _check_if_complete(checkpoint)
        except CheckpointError as error:
            yield path, None, str(error)
        except OSError as error:
            yield path, None, f"{path}: file cannot be read: {error.strerror or error}."
        else:
            yield path, checkpoint, ""


def find_missing_files(directory: Path) -> list[str]:
    """Return a message for each sidecar without a file."""
    paths = [sidecar.with_suffix("") for sidecar in sorted(directory.glob("*.pth.json"))]
    return [
        f"{path}: only the sidecar {path.name}.json exists: the file was deleted, or the save was interrupted."
        for path in paths
        if not path.exists()
    ]


def check_resumable(checkpoint: Mapping[str, Any]) -> None:
    """Raise if a run cannot resume from a checkpoint.

    Raises:
        CheckpointError: If the checkpoint contains only weights, has the format of another version, or contains an
            invalid value.
    """
    check_keys(checkpoint)
    check_format_version(checkpoint)
    check_contents(checkpoint)


def check_keys(checkpoint: Mapping[str, Any]) -> None:
    """Raise if a checkpoint contains only weights, whatever its format version.

    Raises:
        CheckpointError: If a key is missing.
    """
    missing = [key for key in REQUIRED_KEYS if key not in checkpoint]
    if missing:
        raise CheckpointError(
            f"Not a checkpoint to resume from: it has no {', '.join(missing)}. Set `load_from` instead of `resume` to "
            "start from its weights alone."
        )


def extract_weights(checkpoint: Mapping[str, Any], *, averaged: bool = False) -> Mapping[str, Any]:
    """Return the weights of a checkpoint or state dict.

    Raises:
        CheckpointError: If `averaged` is set and the checkpoint contains no averaged weights.
    """
    weights = _get_weights(checkpoint, "state_dict" if "state_dict" in checkpoint else "")
    if not averaged:
        return weights
    if "ema_state_dict" not in checkpoint:
        raise CheckpointError(
            "weights: averaged is set, but the checkpoint contains no averaged weights. Set weights: raw."
        )
    # `ema_state_dict` may cover a part of the model only; the rest comes from the raw weights.
    return {**weights, **_get_weights(checkpoint, "ema_state_dict")}


def _get_weights(checkpoint: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the weights under a key, or the checkpoint itself as weights."""
    weights = checkpoint[key] if key else checkpoint
    with wrap_invalid_data():
        mapping_of(any_value)(weights, key)
        if not weights:
            raise InvalidDataError(key, "weights", "an empty mapping")
    return flatten_weights(weights)


def collect_hooks_and_loop(run: Run) -> dict[str, Any]:
    """Return the keys `hooks`, `state`, `rng` and `loop` of a checkpoint, of this rank."""
    return {
        "hooks": hook_states.collect_hook_states(run),
        **hook_states.collect_loop_state(run.state),
        "rng": get_rng_state(),
        "loop": run.state_dict(),
    }


def collect_averages(run: Run) -> dict[str, Any]:
    """Return the averaged weights under the keys `ema_state_dict` and `averages`, {} if there are none."""
    averaged, names = run.weights.averaged(), run.model_names
    further = {name: nest_weights(weights, names) for name, weights in run.weights.further_averages().items()}
    primary = {} if averaged is None else {"ema_state_dict": nest_weights(averaged, names)}
    return {**primary, **({"averages": further} if further else {})}


def load_hooks_and_loop(run: Run, checkpoint: Mapping[str, Any]) -> None:
    """Load the counts, the states of the hooks and the loop, and the RNG states of this rank."""
    run.load_state_dict(checkpoint["loop"])
    hook_states.load_hook_states(run, checkpoint["hooks"])
    hook_states.load_loop_state(run.state, checkpoint.get("state", {}), run.logger)
    # Last, because the calls above may draw random numbers.
    set_rng_state(checkpoint["rng"])


def _get_format_version(checkpoint: Mapping[str, Any]) -> int:
    """Return the format version of a checkpoint; that of this version if it is invalid, which the schema reports."""
    meta = checkpoint["meta"]
    version = meta.get("schema") if isinstance(meta, Mapping) else None
    return version if type(version) is int else FORMAT_VERSION


def check_format_version(checkpoint: Mapping[str, Any]) -> None:
    """Raise if a checkpoint has the format of another version.

    Raises:
        CheckpointError: If it has.
    """
    version = _get_format_version(checkpoint)
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"The checkpoint has format version {version}, but hookbus {hookbus.__version__} loads format version "
            f"{FORMAT_VERSION}. Install hookbus {checkpoint['meta'].get('hookbus')}, which wrote the checkpoint."
        )


def build_meta(run: Run) -> dict[str, Any]:
    """Return the key `meta` of a checkpoint."""
    clock = run.clock
    return {
        "schema": FORMAT_VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "epoch": clock.epochs_done,
        "iter": clock.iters_done,
        "step": clock.steps_done,
        "samples": clock.samples_done,
        "seed": run.seed,
        **get_parallel_metadata(run),
        "hookbus": hookbus.__version__,
        "torch": str(torch.__version__),
        "config_hash": hash_config(run.plain_config()),
        "metrics": dict(run.metrics.results),
        "best_weights": {metric: best.weights for metric, best in run.best.items()},
        **_describe_changes(run),
    }


def _describe_changes(run: Run) -> dict[str, Any]:
    """Return the structure of the model at the start of the run if hooks have changed it since."""
    if run.model is None or run.initial_structure in (None, get_structure(run.model)):
        return {}
    return {"initial_structure": run.initial_structure}


def hash_config(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 hash of the resolved configuration, in hex; "" if the run has none."""
    if not config:
        return ""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()
