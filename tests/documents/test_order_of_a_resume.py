"""What hooks of other packages rely on when a run resumes: the order of their methods, and changes of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from hookbus import Hook, Run, Trainer
from hookbus.errors import CheckpointError
from hookbus.testing import fingerprint
from tests.toys import Saver, pairs


class Story(Hook):
    """Record each method with the counts, a weight, and the value of the other hook."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool | None, int, bool, int]] = []
        self.restored = 0

    def _record(self, method: str, run: Run) -> None:
        assert isinstance(run.model, nn.Sequential)
        is_trained = bool(run.model[0].weight.sum() != 0)
        lr = run.optimizer.param_groups[0]["lr"]
        self.seen.append((method, run.resumed, run.iters_done, is_trained, round(lr * 10)))

    def check(self, run: Run) -> None:
        self._record("check", run)

    def before_run(self, run: Run) -> None:
        self._record("before_run", run)

    def after_load_checkpoint(self, run: Run) -> None:
        self._record("after_load_checkpoint", run)

    def restore_structure(self, run: Run, state: dict[str, Any]) -> None:
        self._record("restore_structure", run)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._record("load_state_dict", self.run)

    def state_dict(self) -> dict[str, Any]:
        return {"value": 1}

    def before_train(self, run: Run) -> None:
        self._record("before_train", run)

    def before_epoch(self, run: Run) -> None:
        self._record("before_epoch", run)


def build(work_dir: Path, hooks: list[object], *, lr: float = 0.1, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    nn.init.zeros_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    common: dict[str, Any] = {"work_dir": work_dir, "default_hooks": False}
    hooks = [*hooks, Saver("after_epoch")]
    return Trainer(model, optimizer, nn.functional.cross_entropy, pairs(3), hooks=hooks, **common, **options)


def test_methods_are_called_in_the_documented_order(tmp_path: Path) -> None:
    build(tmp_path, [Story()], epochs=1, lr=0.3).fit()
    story = Story()
    build(tmp_path, [story], epochs=2, resume="auto").fit()
    new = (None, 0, False, 1)  # not resumed yet, no iterations, the initial weights and the learning rate of the script
    assert story.seen == [
        ("check", *new),
        ("before_run", *new),
        ("after_load_checkpoint", *new),
        ("restore_structure", *new),
        ("load_state_dict", True, 3, True, 3),
        ("before_train", True, 3, True, 3),
        ("before_epoch", True, 3, True, 3),
    ]


def test_new_run_is_not_resumed_from_before_train_on(tmp_path: Path) -> None:
    story = Story()
    build(tmp_path, [story], epochs=1).fit()
    assert [(name, resumed) for name, resumed, *_ in story.seen] == [
        ("check", None),
        ("before_run", None),
        ("before_train", False),
        ("before_epoch", False),
    ]


class Adapter(Hook):
    """Add a module with a parameter group of its own, and a parametrization, at the start of each run."""

    def before_run(self, run: Run) -> None:
        model, groups = run.require("model"), run.optimizer.param_groups
        assert isinstance(model, nn.Sequential)
        parametrizations.weight_norm(model[0])
        groups[0]["params"] = list(model.parameters())
        model.append(nn.Linear(2, 2))
        run.optimizer.add_param_group({"params": model[-1].parameters(), "lr": 0.05})


def test_structure_changed_in_before_run_is_restored_exactly(tmp_path: Path) -> None:
    def state(run: Run) -> str:
        assert run.model is not None
        return fingerprint([run.model.state_dict(), run.optimizer.state_dict()])

    complete = build(tmp_path / "complete", [Adapter()], epochs=3).fit()
    build(tmp_path / "parts", [Adapter()], epochs=1).fit()
    resumed = build(tmp_path / "parts", [Adapter()], epochs=3, resume="auto").fit()
    assert len(resumed.optimizer.param_groups) == 2
    assert state(resumed) == state(complete)


def test_resume_without_the_changes_is_refused(tmp_path: Path) -> None:
    build(tmp_path, [Adapter()], epochs=1).fit()
    with pytest.raises(CheckpointError, match=r"parametrizations\.weight"):
        build(tmp_path, [], epochs=3, resume="auto").fit()
