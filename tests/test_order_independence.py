"""Tests that the results of a training do not depend on the order and the priorities of its hooks."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import read_checkpoint
from hookbus.lifecycle import POINTS
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_logger import JsonlHook, LoggerHook, read_jsonl
from hookbus_timer import IterTimerHook, TimeTrackingHook


class Reader(Hook):
    """Hook that reads the weights at every point and uses a separate random number generator."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(settings)
        self.generator = torch.Generator().manual_seed(5)


def _read_weights(self: Reader, run: Run) -> None:
    if run.model is not None:
        weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        torch.rand(1, generator=self.generator) * weights.sum()


for _point in POINTS:
    setattr(Reader, _point, _read_weights)

SETTINGS: dict[type[Hook], dict[str, Any]] = {
    EMAHook: {"momentum": 0.8, "warm_up": 0},
    EvalHook: {"interval": 3, "by_epoch": False, "metric": "val/loss"},
    EarlyStoppingHook: {"monitor": "val/loss", "patience": 1, "min_delta": 0.05},
    CheckpointHook: {"interval": 2, "by_epoch": False, "max_keep_ckpts": 2, "best_metric": "val/loss"},
    LoggerHook: {"interval": 2},
    JsonlHook: {"interval": 2},
    IterTimerHook: {"interval": 4},
    TimeTrackingHook: {},
    Reader: {},
}
COUNT = len(SETTINGS)


def build(priorities: list[int], listed: list[int]) -> list[Hook]:
    hooks = [cls(priority=number, **SETTINGS[cls]) for cls, number in zip(SETTINGS, priorities, strict=True)]
    return [hooks[i] for i in listed]


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(1))
    return [(inputs, (inputs.sum(1) > 0).long()) for inputs in x]


def train(hooks: list[Hook], order: Any, custom_loop: bool, work_dir: Path) -> tuple[Run, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    batches = data()
    common = {"epochs": 4, "seed": 0, "work_dir": work_dir}
    if not custom_loop:
        trainer = Trainer(
            model,
            optimizer,
            functional.cross_entropy,
            batches,
            batches,
            hooks=hooks,
            default_hooks=False,
            order=order,
            device="cpu",
            **common,
        )
        return trainer.fit(), model

    def validate() -> dict[str, float]:
        losses = [functional.cross_entropy(model(x), y).double() * len(y) for x, y in batches]
        return {"loss": float(sum(losses) / sum(len(y) for _, y in batches))}

    torch.manual_seed(0)
    bus = HookBus(hooks, order=order)
    with bus.run(model=model, optimizer=optimizer, validate=validate, train_loader=batches, **common) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(batches):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(batch[0]), batch[1])
                loss.backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
            bus.emit("after_train_epoch")
    return run, model


def results(priorities: list[int], listed: list[int], order: str, custom_loop: bool) -> dict[str, Any]:
    """Return the results of a training in a form that can be compared."""
    with TemporaryDirectory() as directory:
        hooks = build(priorities, listed)
        run, model = train(hooks, order, custom_loop, Path(directory))
        checkpoints = {path.name: read_checkpoint(path) for path in (Path(directory) / "checkpoints").glob("*.pth")}
        log = read_jsonl(Path(directory) / "logs" / "metrics.jsonl")
    return {
        "weights": fingerprint(model.state_dict()),
        "files": {name: fingerprint(_comparable_state(checkpoint)) for name, checkpoint in sorted(checkpoints.items())},
        "best": {name: (best.value, best.step) for name, best in run.best.items()},
        "end": (run.outcome, run.iters_done, run.epochs_done, run.stop_reasons),
        "log": [_without_times(row) for row in log],
    }


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "time" and (row["kind"], key) != ("scalars", "values")}


def _comparable_state(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the state that a resume restores, without paths and times, which differ between runs."""
    states = {
        name: checkpoint["hooks"][name]["state"] for name in ("ema", "early_stopping", "checkpoint", "logger", "jsonl")
    }
    states["jsonl"] = {key: value for key, value in states["jsonl"].items() if key != "first"}  # a row with its time
    clock = {key: value for key, value in checkpoint["loop"]["clock"].items() if "second" not in key}
    common_state = {key: checkpoint[key] for key in ("state_dict", "ema_state_dict", "optimizer", "rng")}
    return {**common_state, "hooks": states, "clock": clock, "metrics": checkpoint["loop"]["metrics"]}


REFERENCE: dict[bool, dict[str, Any]] = {}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    priorities=st.lists(st.integers(0, 100), min_size=COUNT, max_size=COUNT),
    listed=st.permutations(range(COUNT)),
    order=st.sampled_from(["nested", "ascending"]),
    custom_loop=st.booleans(),
)
def test_results_do_not_depend_on_order_or_priorities(
    priorities: list[int], listed: list[int], order: str, custom_loop: bool
) -> None:
    if custom_loop not in REFERENCE:
        REFERENCE[custom_loop] = results([50] * COUNT, list(range(COUNT)), "nested", custom_loop)

    assert results(priorities, listed, order, custom_loop) == REFERENCE[custom_loop]


@pytest.mark.slow
def test_trainer_and_custom_loop_have_equal_results() -> None:
    assert results([50] * COUNT, list(range(COUNT)), "nested", False) == results(
        [50] * COUNT, list(range(COUNT)), "nested", True
    )


def test_every_hook_is_active_in_the_training() -> None:
    outcome = results([50] * COUNT, list(range(COUNT)), "nested", False)

    assert outcome["end"][0] == "stopped"
    # The value depends on the random numbers that torch draws for dropout.
    losses = [row["values"]["val/loss"] for row in outcome["log"] if row["kind"] == "val"]
    reasons = [f"early_stopping: val/loss has not improved on {loss:.6g} (epoch 2) in 1 validation" for loss in losses]
    assert outcome["end"][3][0] in reasons
    assert {row["kind"] for row in outcome["log"]} == {"train", "val", "scalars"}
    assert {"best_val_loss.pth", "last.pth"} < set(outcome["files"])
