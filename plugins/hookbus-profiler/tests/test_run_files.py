"""The examples that people bring with them run as they stand."""

import json
import sys
from textwrap import dedent

import pytest

from hookbus.loop import Trainer

PARTS = """
    import torch


    def net():
        return torch.nn.Linear(3, 2)


    def points():
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(120, 3, generator=generator)
        return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
"""
RUN = """
    work_dir: run
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 1}
    loss: cross_entropy
    training: {epochs: 1}
    default_hooks: false
    hooks:
      - type: ProfilerHook
        profile_iters: 100
        schedule:
          wait: 10
          warmup: 10
          active: 80
        record_shapes: true
        profile_memory: true
        export_chrome_trace: true
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    (tmp_path / "parts.py").write_text(dedent(PARTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    yield tmp_path
    sys.modules.pop("parts", None)


@pytest.mark.slow
def test_a_hundred_iterations_of_which_eighty_are_traced(directory):
    (directory / "run.yaml").write_text(dedent(RUN))
    Trainer.from_file("run.yaml").fit()
    assert sorted(path.name for path in (directory / "run/profiler").iterdir()) == [
        "rank0-cycle1-iteration100.operators.txt",
        "rank0-cycle1-iteration100.pt.trace.json.gz",
        "report.txt",
    ]
    assert json.loads((directory / "run/status.json").read_text())["outcome"] == "finished"
    assert "Where the time goes: 9 iterations" in (directory / "run/profiler/report.txt").read_text()
