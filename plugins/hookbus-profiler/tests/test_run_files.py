"""Tests that documented hook configurations run unmodified on the digits dataset."""

import gzip
import json
from pathlib import Path
from textwrap import dedent, indent

import pytest

from hookbus import Hook
from hookbus.trainer.trainer import Trainer

DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits.yaml"
EXAMPLES = {
    "profiler": """
        - type: ProfilerHook
          profile_iters: 100
          schedule:
            wait: 10
            warmup: 10
            active: 80
          record_shapes: true
          profile_memory: true
          export_chrome_trace: true
    """,
    "memory_profiler": """
        - type: MemoryProfilerHook
          interval: 100
          warn_threshold: 10.0
    """,
    "iter_timer": """
        - type: IterTimerHook
          interval: 50
    """,
}


class RecordNames(Hook):
    """Record the names of logged scalars by step."""

    def __init__(self):
        super().__init__()
        self.names = {}

    def log_scalars(self, values, step):
        self.names.setdefault(step, set()).update(values)


def train(directory, *hooks):
    """Train for five epochs of 23 iterations with the given example configurations."""
    before_hooks = DIGITS.read_text().partition("\nhooks:")[0]
    text = "".join(indent(dedent(EXAMPLES[hook]).strip() + "\n", "  ") for hook in hooks)
    (directory / "run.yaml").write_text(f"{before_hooks}\nhooks:\n{text}")
    trainer = Trainer.from_file(directory / "run.yaml", [f"work_dir={directory / 'run'}", "training.epochs=5"])
    trainer.register_hook(writer := RecordNames())
    run = trainer.fit()
    assert (run.outcome, run.iters_done) == ("finished", 115)
    return writer.names


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestExamples:
    def test_profiler_example_traces_eighty_of_a_hundred_iterations(self, tmp_path):
        train(tmp_path, "profiler")
        directory = tmp_path / "run" / "profiler"
        trace = directory / "rank0-cycle1-iteration100.pt.trace.json.gz"

        assert {path.name for path in directory.iterdir()} == {
            "rank0-cycle1-iteration100.operators.txt", trace.name, "report.txt"
        }  # fmt: skip
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert sum(event.get("name", "").startswith("ProfilerStep#") for event in events) == 80
        assert any("Input Dims" in event.get("args", {}) for event in events)
        assert "aten::convolution" in (directory / "rank0-cycle1-iteration100.operators.txt").read_text()
        report = (directory / "report.txt").read_text()
        assert report.startswith("Time breakdown: 8 iterations of ")
        assert "GFLOP per iteration" in report

    def test_memory_profiler_example_logs_every_hundred_iterations(self, tmp_path):
        names = train(tmp_path, "memory_profiler")

        assert [step for step, scalars in names.items() if "memory/process_gb" in scalars] == [100]

    def test_iter_timer_example_logs_every_fifty_iterations_and_per_epoch(self, tmp_path):
        names = train(tmp_path, "iter_timer")

        assert [step for step, scalars in names.items() if "time/eta" in scalars] == [23, 46, 50, 92, 100, 115]

    def test_all_examples_work_together(self, tmp_path):
        names = train(tmp_path, *EXAMPLES)

        assert {"memory/process_gb", "time/iter", "time/data", "throughput/samples_per_second"} <= names[100]
        report = (tmp_path / "run" / "profiler" / "report.txt").read_text()
        assert report.startswith("Time breakdown: 8 iterations of ")
