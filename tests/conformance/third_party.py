"""Hooks as a third party writes them: only with the names on the API page, which the test of this module checks.

They implement the core of what the packages of the project do: checkpoints, an average, a drawing and a writer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookbus import Hook, HookConfig, Priority, Request, Run, Writer, WriterHook, every, hookimpl
from hookbus.checkpoint import CheckpointStore, schema, write_checkpoint
from hookbus.distributed import strip_wrappers
from hookbus.errors import CheckpointError
from hookbus.evaluation import eval_mode, isolate_rng
from hookbus.writers import AppendOnlyFile, RecordKey

# -- checkpoints -----------------------------------------------------------------------------


class KeepConfig(HookConfig):
    """Settings of `KeepHook`."""

    keep: int = 2


class KeepHook(Hook):
    """Save a checkpoint per epoch, keep the newest ones and a link `last.pth`."""

    Config = KeepConfig
    priority = Priority.BELOW_NORMAL
    requires_work_dir = True
    config: KeepConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.names: list[str] = []
        self.generation = 0

    def directory(self, run: Run) -> Path:
        if run.checkpoint_directory is None:
            raise CheckpointError("work_dir: must be set, got None. Pass `work_dir` to the run.")
        return run.checkpoint_directory

    def before_run(self, run: Run) -> None:
        run.provide("checkpoint_saver", self)

    def before_train(self, run: Run) -> None:
        run.lock_directory(self.directory(run))

    def after_train_epoch(self, run: Run) -> None:
        run.request_save(f"epoch {run.epochs_done}", saver=self)

    def plan(self, run: Run, requests: list[Request]) -> Path:
        name = f"epoch_{run.epochs_done}.pth"
        self.names = [*(other for other in self.names if other != name), name]
        self.generation += 1
        return self.directory(run) / name

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        run.ranks.call_on_main("the checkpoint", lambda: self._commit(run, checkpoint))
        del self.names[: -self.config.keep]
        return False

    def _commit(self, run: Run, checkpoint: dict[str, Any]) -> None:
        store = CheckpointStore(self.directory(run), run.id)
        path = store.directory / self.names[-1]
        write_checkpoint(path, checkpoint, self.generation)
        store.add_link(path, store.directory / "last.pth")
        for name in self.names[: -self.config.keep]:
            if store.written_by(store.directory / name):
                store.remove(store.directory / name)

    def state_dict(self) -> dict[str, Any]:
        return {"names": list(self.names), "generation": self.generation}

    def check_state(self, state: dict[str, Any]) -> None:
        schema.record({"names": schema.list_of(schema.file_name), "generation": schema.integer()})(state, "state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names, self.generation = list(state["names"]), state["generation"]


# -- an average ------------------------------------------------------------------------------


class MeanHook(Hook):
    """Maintain the mean of the weights after each optimizer step."""

    priority = Priority.ABOVE_NORMAL

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.mean: dict[str, Tensor] = {}
        self.count = 0

    def before_run(self, run: Run) -> None:
        if run.mode == "train" and run.iters_done == 0:
            self.mean, self.count = {}, 0
        run.weights.provide(self)

    def after_train_iter(self, run: Run) -> None:
        if not run.stepped:
            return
        self.count += 1
        for name, value in self._parameters(run).items():
            mean = self.mean.setdefault(name, torch.zeros_like(value))
            mean.lerp_(value, 1 / self.count)

    def averaged(self) -> dict[str, Tensor] | None:
        return self.mean or None

    @contextmanager
    def applied(self) -> Iterator[None]:
        parameters = self._parameters(self.run)
        raw = {name: parameters[name].clone() for name in self.mean}
        for name, value in self.mean.items():
            parameters[name].copy_(value)
        try:
            yield
        finally:
            for name, value in raw.items():
                parameters[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": dict(self.mean), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.count = {name: value.clone() for name, value in state["mean"].items()}, state["count"]

    @staticmethod
    def _parameters(run: Run) -> dict[str, Tensor]:
        assert run.model is not None
        return {name: value.detach() for name, value in strip_wrappers(run.model).named_parameters()}


# -- a drawing -------------------------------------------------------------------------------


class OutputImageHook(Hook):
    """Draw the outputs of the model for a fixed input, without an effect on the training."""

    observer = True
    ranks = "main"

    @hookimpl(when=every(2))
    def after_train_iter(self, run: Run) -> None:
        assert run.model is not None
        with isolate_rng(), eval_mode(run.model), torch.no_grad():
            parameter = next(run.model.parameters())
            output = run.model(torch.ones(4, parameter.shape[1], device=parameter.device))
        image = (output - output.min()) / (output.max() - output.min()).clamp_min(1e-12)
        run.bus.emit("log_images", tag="outputs", images=image.cpu()[..., None], step=run.steps_done)


# -- a writer --------------------------------------------------------------------------------


class LinesWriter(Writer):
    """Write one JSON value per line: name, step, value."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.file = AppendOnlyFile(path, run_id)

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        self.file.append((json.dumps([name, step, float(value)]) + "\n").encode())

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Ignore images."""

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Ignore the configuration."""

    def resume(self, since: int, step: int) -> set[RecordKey]:
        rows = [json.loads(line) for line in self.file.read_lines()]
        kept = [row for row in rows if row[1] <= step]
        self.file.replace("".join(json.dumps(row) + "\n" for row in kept).encode())
        return {("scalar", name, at) for name, at, _ in kept if at >= since}

    def flush(self) -> None:
        self.file.flush()

    def abandon(self) -> None:
        self.file.discard_pending()
        self.close()

    def close(self) -> None:
        self.file.close()


class LinesHook(WriterHook):
    """Write the scalars of a training to `logs/lines/numbers.txt`."""

    requires_work_dir = True

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        path = self.directory(run, None) / "numbers.txt"
        return lambda: LinesWriter(path, run.id)
