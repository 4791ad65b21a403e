"""Positions in the training data as saved by version 0.1.0, which saved the state of one loader per epoch.

The position was the number of completed iterations of the epoch, over all of its loaders in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._run.data_passes import DataPass
from hookbus._run.pass_list import Moment

if TYPE_CHECKING:
    from hookbus._run.clock import Clock


def convert_former_state(state: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Return the passes of the epoch, for `PassList.load_state`."""
    loader = {key: value for key, value in state.items() if key in ("loader", "inside")}
    if not clock.epoch_open:
        return {"loaders": [loader] if loader else []}
    data_pass = DataPass(None, clock.epoch_first_iter)
    data_pass.epoch, data_pass.position = clock.epochs_done, clock.iters_done - clock.epoch_first_iter
    data_pass.start = {key: value for key, value in state.items() if key == "epoch_began"}
    data_pass.loader_state = loader
    return {"passes": [_to_state(data_pass)], "next": 1}


def split_former_pass(data_pass: DataPass, length: int | None) -> dict[str, Any] | None:
    """Limit the position of a pass to the length of its loader.

    Returns:
        State of the next pass, which the remaining iterations belong to; None if there are none.
    """
    if not data_pass.former or length is None or data_pass.position <= length:
        return None
    rest, data_pass.position = data_pass.position - length, length
    return {**_to_state(data_pass), "position": rest}


def _to_state(data_pass: DataPass) -> dict[str, Any]:
    return {**Moment(0).to_state(data_pass, 0), "former": True}
