"""MMEngine. Light: every default hook set to None and log level ERROR; then the default hooks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.peers.common import Blocks, adam, compare, model

NO_HOOKS = dict.fromkeys(("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint"))


class Listener(Hook):
    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        pass


class ScheduledListener(Hook):
    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if self.every_n_train_iters(runner, 100):
            raise AssertionError("none of them is due")


class Model(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers = model()

    def forward(self, images: Tensor, labels: Tensor, mode: str = "loss") -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(self.layers(images), labels)}


def runner(blocks: DataLoader[Any], directory: str, **settings: Any) -> Runner:
    trained = Model()
    return Runner(
        trained,
        work_dir=directory,
        train_dataloader=blocks,
        optim_wrapper={"optimizer": adam(trained)},
        train_cfg={"by_epoch": True, "max_epochs": 1},
        log_level="ERROR",
        experiment_name=uuid4().hex,  # MMEngine rejects two runners with the same name
        **settings,
    )


def event(count: int, rarely: bool) -> Callable[[], Any]:
    with tempfile.TemporaryDirectory() as directory:
        made = runner(Blocks(), directory, default_hooks=NO_HOOKS)
    for _ in range(count):
        made.register_hook((ScheduledListener if rarely else Listener)())
    batch = (1, 2)
    return lambda: made.call_hook("after_train_iter", batch_idx=0, data_batch=batch, outputs=None)


def without_hooks(blocks: Blocks) -> None:
    with tempfile.TemporaryDirectory() as directory:
        runner(blocks, directory, default_hooks=NO_HOOKS).train()


def default_hooks(blocks: Blocks) -> None:
    with tempfile.TemporaryDirectory() as directory:
        runner(blocks, directory).train()


if __name__ == "__main__":
    compare("mmengine", event, {"no hooks": without_hooks, "default hooks": default_hooks})
