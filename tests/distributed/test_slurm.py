"""The template of the docs, with stand-ins for SLURM's own programs, on this machine."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.distributed.conftest import WORKER
from tests.pages import ROOT, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PROGRAMS = {
    "srun": 'exec "$@"',
    "scontrol": """
        case "$1" in
            show) echo 127.0.0.1 ;;
            *) echo "$@" >> asked ;;
        esac
    """,
    "torchrun": f'exec {shlex.quote(sys.executable)} -m torch.distributed.run "$@"',
}
PARTS = """
    import os, signal

    import toys
    from hookbus import Hook
    from hookbus import Splits


    def points():
        return Splits(toys.data())


    class TimeIsOverHook(Hook):
        '''SLURM's signal comes to torchrun.'''

        def after_train_iter(self, run):
            if os.environ["RANK"] == "0" and run.iters_done == 3 and not os.path.exists("asked"):
                os.kill(os.getppid(), signal.SIGUSR1)
"""
RUN = """
    work_dir: runs/many
    model: {type: "toys:net"}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 0.1}
    training: {epochs: 500}
    device: cpu
    default_hooks: false
    hooks:
      - {type: checkpoint, interval: 1000}
      - {type: preemption}
      - {type: "parts:TimeIsOverHook"}
"""


def template() -> str:
    """What the page shows, with a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (script,) = blocks(ROOT / "docs" / "distributed.md", "bash")
    return script.text.replace("29500", str(port))


def status_after(directory: Path, **overrides: str) -> dict[str, object]:
    """What the run says of itself after the job."""
    variables = {
        **os.environ,
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(WORKER.parent),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "here",
        "SLURM_NNODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
    }
    script = template()
    for key, value in overrides.items():
        script = script.replace("resume=auto", f"resume=auto {key.replace('__', '.')}={value}")
    subprocess.run(["bash", "-c", script], cwd=directory, env=variables, timeout=100, check=False)
    found: dict[str, object] = json.loads((directory / "runs" / "many" / "status.json").read_text())
    return found


def test_a_job_whose_time_is_over_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{dedent(text)}\n")
        program.chmod(0o755)
    (tmp_path / "parts.py").write_text(dedent(PARTS))
    (tmp_path / "run.yaml").write_text(dedent(RUN))

    first = status_after(tmp_path)
    assert (first["outcome"], first["exit_code"]) == ("preempted", 75)
    assert (tmp_path / "asked").read_text() == "requeue 17\n"

    done = first["iters_done"]
    assert isinstance(done, int)
    second = status_after(tmp_path, training__epochs=str(done // 4 + 2))
    assert (second["outcome"], second["exit_code"], second["run"]) == ("finished", 0, first["run"])
    assert second["iters_done"] == (done // 4 + 2) * 4
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
