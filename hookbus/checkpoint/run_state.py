"""State of the hooks and the loop of a run: a checkpoint without weights, optimizers, schedulers and scaler.

`get_run_state` and `set_run_state` are for loops whose owner saves the rest, such as another trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus.checkpoint.components import check_accumulated_grads, collect_grads, load_grads
from hookbus.checkpoint.contents import check_contents
from hookbus.checkpoint.hook_states import check_hook_states
from hookbus.checkpoint.plain_data import validate_plain_data
from hookbus.checkpoint.rank_state import add_rank_states, reshard, select_rank_state
from hookbus.checkpoint.state import (
    build_meta,
    check_format_version,
    collect_averages,
    collect_hooks_and_loop,
    load_hooks_and_loop,
)
from hookbus.errors import CheckpointError, LoopError

if TYPE_CHECKING:
    from hookbus._run.run import Run

REQUIRED_KEYS = ("meta", "hooks", "rng", "loop")


def get_run_state(run: Run) -> dict[str, Any]:
    """Return the state of the hooks and the loop of a run, for the checkpoint of a loop that saves the rest itself.

    It contains the hook states, counts, metrics, best results, positions in the data, RNG states, the entries of
    `state=`, averaged weights under `ema_state_dict`, and the gradients of an incomplete accumulation under `grads`.
    Weights, optimizers, schedulers and scaler are left to the owner of the loop. With multiple ranks this is a
    collective call.

    Args:
        run: Run in progress, between two iterations.

    Returns:
        Built-in Python types and tensors, which `torch.load(weights_only=True)` reads. Tensors are references.

    Raises:
        LoopError: If an iteration is in progress.
        CheckpointError: If a state contains a value that is neither a built-in Python type nor a tensor.
    """
    if run.mid_iteration:
        raise LoopError(
            f"get_run_state: called within iteration {run.current('iter')}, epoch {run.current('epoch')}. Call it "
            "after after_train_iter."
        )
    # Another thread may be updating the averaged weights.
    run.weights.wait()
    with run.weights.eval_mode():
        state = {"meta": build_meta(run), **collect_averages(run), **collect_grads(run), **collect_hooks_and_loop(run)}
    validate_plain_data(state, "state")
    add_rank_states(state, run)
    return state


def set_run_state(run: Run, state: Mapping[str, Any]) -> None:
    """Restore what `get_run_state` has returned, after the owner of the loop has restored the rest.

    A state that is known before the run begins is passed to `bus.open(resume=state)` instead, which also continues
    the files of the run in its work directory.

    Args:
        run: Run that `bus.open` or `bus.run` has begun, before its first iteration.
        state: State of a run with the same hooks.

    Raises:
        CheckpointError: If it is not the state of a run, has the format of another version, or does not match the
            hooks; the run is then unchanged.
    """
    check_run_state(state)
    states, own = dict(state["hooks"]), select_rank_state(reshard(state, run), run)
    check_hook_states(run, states)
    check_accumulated_grads(run, own)
    if "grads" in own:
        load_grads(run, own["grads"])
    load_hooks_and_loop(run, {**own, "hooks": states})


def check_run_state(state: Mapping[str, Any]) -> None:
    """Raise if a mapping is not the state of a run.

    Raises:
        CheckpointError: If it is not, has the format of another version, or contains an invalid value.
    """
    missing = [key for key in REQUIRED_KEYS if key not in state]
    if missing:
        raise CheckpointError(
            f"run state: expected the result of get_run_state, got a mapping without {', '.join(missing)}. Pass the "
            "entry of the checkpoint that contains it."
        )
    check_format_version(state)
    check_contents(state, is_run_state=True)
