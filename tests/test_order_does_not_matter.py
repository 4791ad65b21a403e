"""The promise that hooks ask and the bus acts is there for: results do not depend on the order of the hooks."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.lifecycle import POINTS
from hookbus.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook, read_jsonl


class Average(Hook):
    """Keeps an average of the weights, changed once per update."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(settings)
        self.mean: dict[str, torch.Tensor] = {}

    def after_optimizer_step(self, run: Run) -> None:
        assert run.model is not None
        for name, value in run.model.state_dict().items():
            old = self.mean.get(name, value)
            self.mean[name] = 0.5 * old + 0.5 * value

    def state_dict(self) -> dict[str, Any]:
        return {"mean": dict(self.mean)}


class Validates(Hook):
    """Asks for a validation every few iterations."""

    schedules_validation = True

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done % 3 == 0:
            run.request_validation("every third iteration")


class Stops(Hook):
    """Counts validations without improvement, and asks for the end."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(settings)
        self.best, self.waited = float("inf"), 0

    def after_val(self, run: Run) -> None:
        loss = run.metrics.results["val/loss"]
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        if self.waited >= 2 or run.iters_done >= 12:
            run.request_stop("no improvement")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}


class Reads(Hook):
    """Looks at the weights at every point, and draws from a generator of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(settings)
        self.generator = torch.Generator().manual_seed(5)


def _look(self: Reads, run: Run) -> None:
    if run.model is not None:
        weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        torch.rand(1, generator=self.generator) * weights.sum()


for _point in POINTS:
    setattr(Reads, _point, _look)

KINDS = (Average, Validates, Stops, Reads, CheckpointHook, JsonlHook)


def build(priorities: list[int], listed: list[int]) -> list[Hook]:
    options: dict[type, dict[str, Any]] = {
        CheckpointHook: {"interval": 2, "by_epoch": False, "max_keep_ckpts": 2, "best_metric": "val/loss"},
        JsonlHook: {"interval": 2},
    }
    hooks = [cls(priority=p, **options.get(cls, {})) for cls, p in zip(KINDS, priorities, strict=True)]
    return [hooks[i] for i in listed]


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(1))
    return [(each, (each.sum(1) > 0).long()) for each in x]


def train(hooks: list[Hook], order: Any, own_loop: bool, work_dir: Path) -> tuple[Run, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    batches = data()
    common = {"epochs": 4, "seed": 0, "work_dir": work_dir}
    if not own_loop:
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


def results(priorities: list[int], listed: list[int], order: str, own_loop: bool) -> dict[str, Any]:
    """Everything that a training leaves, in a form that can be compared."""
    with TemporaryDirectory() as directory:
        hooks = build(priorities, listed)
        run, model = train(hooks, order, own_loop, Path(directory))
        checkpoints = {path.name: read_checkpoint(path) for path in (Path(directory) / "checkpoints").glob("*.pth")}
        log = read_jsonl(Path(directory) / "logs" / "metrics.jsonl")
    return {
        "weights": fingerprint(model.state_dict()),
        "files": {name: fingerprint(_kept(each)) for name, each in sorted(checkpoints.items())},
        "best": {name: (best.value, best.step) for name, best in run.best.items()},
        "end": (run.outcome, run.iters_done, run.epochs_done, run.stop_reasons),
        "log": [{key: value for key, value in row.items() if key != "time"} for row in log],
    }


def _kept(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What a resume takes from a file; the paths and times in it differ between any two runs."""
    states = {name: checkpoint["hooks"][name]["state"] for name in ("average", "stops", "checkpoint")}
    clock = {key: value for key, value in checkpoint["loop"]["clock"].items() if "second" not in key}
    kept = {key: checkpoint[key] for key in ("state_dict", "optimizer", "rng")}
    return {**kept, "hooks": states, "clock": clock, "metrics": checkpoint["loop"]["metrics"]}


REFERENCE: dict[bool, dict[str, Any]] = {}


@settings(max_examples=12, deadline=None)
@given(
    priorities=st.lists(st.integers(0, 100), min_size=6, max_size=6),
    listed=st.permutations(range(6)),
    order=st.sampled_from(["nested", "ascending"]),
    own_loop=st.booleans(),
)
def test_weights_files_best_log_and_end_are_the_same(
    priorities: list[int], listed: list[int], order: str, own_loop: bool
) -> None:
    if own_loop not in REFERENCE:
        REFERENCE[own_loop] = results([50] * 6, list(range(6)), "nested", own_loop)

    assert results(priorities, listed, order, own_loop) == REFERENCE[own_loop]


def test_the_trainer_and_a_loop_of_ones_own_agree() -> None:
    assert results([50] * 6, list(range(6)), "nested", False) == results([50] * 6, list(range(6)), "nested", True)
