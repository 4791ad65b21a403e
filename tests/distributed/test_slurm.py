"""SLURM template of the documentation, with replacements for SLURM's programs."""

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

MOCK_COMMANDS = {
    "srun": 'exec "$@"',
    "scontrol": """
        case "$1" in
            show) echo 127.0.0.1 ;;
            *) echo "$@" >> scontrol.log ;;
        esac
    """,
    "torchrun": f'exec {shlex.quote(sys.executable)} -m torch.distributed.run "$@"',
}
SIGNAL_HOOK = """
    import os, signal

    import toys
    from hookbus import Hook
    from hookbus import Splits


    def points():
        return Splits(toys.data())


    class TimeLimitHook(Hook):
        '''Send the signal of a SLURM time limit to torchrun, as `--signal=USR1@180` does.'''

        def after_train_iter(self, run):
            if os.environ["RANK"] == "0" and run.iters_done == 3 and not os.path.exists("scontrol.log"):
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
      - {type: "parts:TimeLimitHook"}
"""


def read_job_script() -> str:
    """Return the job script of the page, with a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (script,) = blocks(ROOT / "docs" / "distributed.md", "bash")
    return script.text.replace("29500", str(port))


def run_job(directory: Path, **overrides: str) -> dict[str, object]:
    """Run the job script and return the content of status.json."""
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
    script = read_job_script()
    for key, value in overrides.items():
        script = script.replace("resume=auto", f"resume=auto {key.replace('__', '.')}={value}")
    subprocess.run(["bash", "-c", script], cwd=directory, env=variables, timeout=100, check=False)
    status: dict[str, object] = json.loads((directory / "runs" / "many" / "status.json").read_text())
    return status


def test_job_at_its_time_limit_is_requeued_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in MOCK_COMMANDS.items():
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/bash\n{dedent(body)}\n")
        command.chmod(0o755)
    (tmp_path / "parts.py").write_text(dedent(SIGNAL_HOOK))
    (tmp_path / "run.yaml").write_text(dedent(RUN))

    first = run_job(tmp_path)
    assert (first["outcome"], first["exit_code"]) == ("preempted", 75)
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"

    iters_done = first["iters_done"]
    assert isinstance(iters_done, int)
    second = run_job(tmp_path, training__epochs=str(iters_done // 4 + 2))
    assert (second["outcome"], second["exit_code"], second["run"]) == ("finished", 0, first["run"])
    assert second["iters_done"] == (iters_done // 4 + 2) * 4
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"
