"""Schema of a checkpoint to resume from: types, ranges and keys of everything that a run restores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookbus._utils.schema import (
    InvalidDataError,
    any_value,
    boolean,
    either,
    integer,
    join,
    list_of,
    mapping_of,
    nullable,
    number,
    record,
    shorten,
    string,
    tensor,
)
from hookbus.errors import CheckpointError, format_path

RNG_WORDS = 625
"""Number of integers in the state of Python's RNG; the last one is an index."""

SEED = integer(-(2**63), 2**64 - 1)


def _try_state(library: str, load: Callable[[Any], object], value: Any, key: str) -> None:
    """Raise unless a library loads a state of its RNG. Tensors without data, as in metadata, are not checked."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(part, Tensor) and part.device.type == "meta" for part in parts):
        return
    try:
        load(value)
    except Exception as error:
        got = f"{shorten(value)} ({shorten(str(error))})"
        raise InvalidDataError(key, f"a state of {library}'s RNG", got) from None


def _load_numpy_state(value: Any) -> None:
    import numpy

    name, keys, position, has_gauss, gauss = value
    numpy.random.RandomState().set_state((name, keys.numpy().astype("uint32"), position, has_gauss, gauss))


def _check_python_state(value: Any, key: str) -> None:
    list_of(any_value, 3, 3)(value, key)
    list_of(integer(0, 2**32 - 1), RNG_WORDS, RNG_WORDS)(value[1], f"{key}[1]")
    nullable(number(finite=True))(value[2], f"{key}[2]")
    _try_state("Python", lambda state: random.Random().setstate((state[0], tuple(state[1]), state[2])), value, key)


def _check_numpy_state(value: Any, key: str) -> None:
    list_of(any_value, 5, 5)(value, key)
    tensor(1, torch.int64, RNG_WORDS - 1)(value[1], f"{key}[1]")
    integer(0, RNG_WORDS - 1)(value[2], f"{key}[2]")
    _try_state("NumPy", _load_numpy_state, value, key)


def _check_torch_state(value: Any, key: str) -> None:
    _bytes(value, key)
    _try_state("torch", lambda state: torch.Generator().set_state(state), value, key)


_bytes = tensor(1, torch.uint8, 1 << 20)
_rng = record(
    {"python": _check_python_state, "torch": _check_torch_state},
    {"numpy": _check_numpy_state, "cuda": list_of(_bytes), "mps": _bytes},
)

EVALUATED = r"raw|evaluated|averaged(/[^/\0]+)?"
"""Pattern of the weights that a result has, see `Weights.describe`."""

_scalar = either(number(), tensor(maximum=1))
_count = integer()
_counts = mapping_of(_count)
_meta = record(
    {"schema": _count},
    {
        **dict.fromkeys(("epoch", "iter", "step", "samples"), _count),
        "seed": SEED,
        "processes": integer(1, 1 << 24),
        "batch_size": nullable(integer(1)),
        **dict.fromkeys(("time", "hookbus", "torch", "config_hash"), string()),
        "metrics": mapping_of(number()),
        "best_weights": mapping_of(string(EVALUATED)),
        "initial_structure": mapping_of(nullable(list_of(_count))),
    },
)
_TOKENS = ("done", "before", "seen", "epoch_before", "epoch_first", "epoch_end", "step_before", "step_seen")
_clock = record(
    {
        **dict.fromkeys(("epochs_done", "iters_done", "steps_done", "samples_done", "steps_before"), _count),
        **dict.fromkeys(("epoch_first_iter", "epoch_first_step", "epoch_first_sample", "epoch_first_second"), _count),
        **dict.fromkeys(("epoch_seconds_before", "seconds_before", "seconds_seen", "iter_at_last_step"), _count),
        **dict.fromkeys(("epoch_open", "counts_seconds", "stepped"), boolean),
        "seconds": number(0, finite=True),
    },
    {"tokens": record(dict.fromkeys(_TOKENS, _count))},
)
_CHUNK = 64
_values = either(list_of(number(), maximum=_CHUNK), tensor(1, maximum=_CHUNK))
_window = record({"begins": _counts, "sums": mapping_of(list_of(_scalar, 3, 3))}, {"recorded_at": integer(-1)})
_metrics = record(
    {
        "columns": mapping_of(record({"values": _values, "count": _count, "open": boolean})),
        "windows": mapping_of(_window),
        "results": mapping_of(number()),
    }
)
_best = mapping_of(
    record(
        {"value": number(), "epoch": _count, "step": _count},
        {"weights": string(EVALUATED), "path": nullable(string(r"(?!(.*/)?\.\.(/|$))[^\0]*"))},
    )
)
_generator = either(_bytes, list_of(any_value, 3, 3), mapping_of(any_value), list_of(any_value))
_start = record({}, {"epoch_began": _rng, "generators": list_of(_generator)})
_loader = record({}, {"inside": boolean, "at_end": boolean, "generators": list_of(_generator)})
_pass = record(
    {
        **dict.fromkeys(("ordinal", "position", "epoch", "iteration"), _count),
        **dict.fromkeys(("length", "group"), nullable(_count)),
        "count": integer(1),
        "ended": boolean,
        "start": _start,
        "loader": _loader,
    },
    {"former": boolean},
)
_passes = record({"loaders": list_of(_loader)}, {"passes": list_of(_pass), "next": _count})
_lengths = record(
    {
        **dict.fromkeys(("last", "observed"), nullable(_count)),
        "confirmed": boolean,
        **dict.fromkeys(("current", "previous"), list_of(nullable(_count))),
    }
)
_current_data = record({"epoch": _passes, "run": _passes, "lengths": _lengths}, {"batch_size": integer(1)})
_former_data = record({}, {"epoch_began": _rng, "inside": boolean})


def _data(value: Any, key: str) -> None:
    """Require the position in the data, in the current format or in that of version 0.1.0, which has no `epoch`."""
    mapping_of(any_value)(value, key)
    (_current_data if "epoch" in value else _former_data)(value, key)


_optional_values = mapping_of(list_of(nullable(number())))
_optimizers = record(
    {"steps": _counts},
    {
        "iterations": mapping_of(integer(-1)),
        "rates": mapping_of(list_of(number())),
        **dict.fromkeys(("momentum", "weight_decay"), _optional_values),
    },
)
_loop = record(
    {
        "clock": _clock,
        "metrics": _metrics,
        "best": _best,
        "accumulated": _count,
        "validated_at": integer(-1),
        "seed": SEED,
        "data": _data,
    },
    {"id": string("[0-9A-Za-z_-]*", 64), "optimizers": _optimizers},
)
_hook = record(
    {"state": mapping_of(any_value, any_value), "version": either(string(), integer()), "package": string()},
    {"type": string(), "config": mapping_of(any_value)},
)
_hooks = mapping_of(_hook)
_state = mapping_of(any_value)
_grads = mapping_of(tensor())
_rank = record({"rng": _rng, "metrics": _metrics, "data": _data}, {"grads": _grads, "state": _state})
_RUN_STATE = {"meta": _meta, "hooks": _hooks, "rng": _rng, "loop": _loop}
_OPTIONAL = {
    "ema_state_dict": _state,
    "averages": mapping_of(_state),
    "grads": _grads,
    "state": _state,
    "ranks": list_of(_rank),
}
_run_state = record(_RUN_STATE, _OPTIONAL)
_checkpoint = record(
    {**_RUN_STATE, "state_dict": _state},
    {
        **_OPTIONAL,
        "training_weights": _state,
        **dict.fromkeys(("optimizer", "scheduler", "scaler", "loss"), _state),
    },
)

EARLIER = {
    "epoch_first_iter": "iters_done",
    "iter_at_last_step": "iters_done",
    "epoch_first_step": "steps_done",
    "steps_before": "steps_done",
    "epoch_first_sample": "samples_done",
}
"""Counts of the clock that are at most another count."""

SAME = {"epoch": "epochs_done", "iter": "iters_done", "step": "steps_done", "samples": "samples_done"}
"""Counts in `meta`, and the same counts of the clock."""


def check_contents(checkpoint: Mapping[str, Any], *, is_run_state: bool = False) -> None:
    """Raise if a run cannot use a value of a checkpoint, before anything is restored.

    Args:
        checkpoint: Checkpoint of this format version; its tensors may be on the meta device.
        is_run_state: Whether it is the part of a checkpoint that `get_run_state` returns.

    Raises:
        CheckpointError: If a value is missing or invalid; the message contains its key.
    """
    with wrap_invalid_data():
        (_run_state if is_run_state else _checkpoint)(checkpoint, "")
        loop, meta, ranks = checkpoint["loop"], checkpoint["meta"], checkpoint.get("ranks", ())
        _check_counts(loop["clock"], meta)
        for part in (loop, *ranks):
            _check_columns(part["metrics"]["columns"])
        for i, part in enumerate((loop, *ranks) if "optimizers" in loop else ()):
            # Without `epoch`, the position would be read in the format of version 0.1.0, which lacks `optimizers`.
            _current_data(part["data"], f"ranks[{i - 1}].data" if i else "loop.data")
        if len(ranks) not in (0, meta.get("processes", 1)):
            raise InvalidDataError("ranks", f"{meta.get('processes', 1)} entries", f"{len(ranks)}")


def check_hook_records(records: Any) -> None:
    """Raise if the hook states of a checkpoint are not mappings with state, version and package.

    Raises:
        CheckpointError: If a record is invalid.
    """
    with wrap_invalid_data():
        _hooks(records, "hooks")


@contextmanager
def wrap_invalid_data(path: Path | None = None) -> Iterator[None]:
    """Context manager that converts an error of a check of `hookbus.checkpoint.schema` to a CheckpointError.

    Args:
        path: Path of the checkpoint for the message. Default: None, for a message without a path.

    Raises:
        CheckpointError: If a value of the checkpoint is invalid.
    """
    try:
        yield
    except InvalidDataError as error:
        where = "" if path is None else f"{format_path(path)}: "
        raise CheckpointError(f"{where}The checkpoint is invalid: {error}. Use another checkpoint.") from None


def _check_counts(clock: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    for name, later in EARLIER.items():
        if clock[name] > clock[later]:
            raise InvalidDataError(f"loop.clock.{name}", f"at most {later}={clock[later]}", str(clock[name]))
    for name, count in clock.get("tokens", {}).items():
        if count > clock["tokens"]["done"]:
            raise InvalidDataError(f"loop.clock.tokens.{name}", f"at most done={clock['tokens']['done']}", str(count))
    for name, same in SAME.items():
        if meta.get(name, clock[same]) != clock[same]:
            raise InvalidDataError(f"loop.clock.{same}", f"{meta[name]} as in meta.{name}", str(clock[same]))


def _check_columns(columns: Mapping[str, Any]) -> None:
    for name, column in columns.items():
        count = column["count"]
        filled = (count - 1) % _CHUNK + 1 if count else 0
        if len(column["values"]) != filled:
            key = join(join("loop.metrics.columns", name), "values")
            raise InvalidDataError(key, f"{filled} values of {count}", f"{len(column['values'])} values")
