"""Environment, seed and configuration of a run, in the log, the status file and the writers."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import hookbus
from hookbus import Hook, Priority, Run
from hookbus.writers import flatten

GIT_TIMEOUT_S = 5
"""Timeout of a git command, in seconds."""


class RuntimeInfoHook(Hook):
    """Log the environment of a run: to the log and `status.json` at its start, to all writers before training."""

    priority = Priority.VERY_HIGH
    observer = True
    ranks = "main"

    def before_run(self, run: Run) -> None:
        """Collect and log the environment, and write it to the status file."""
        run.metadata.update(run.redact(collect_environment(run.device)), seed=run.seed)
        for name, value in {**run.redact(run.metadata), **flatten({"config": run.plain_config()})}.items():
            run.logger.info("%s: %s", name, _format_value(value))

    def before_train(self, run: Run) -> None:
        """Log the environment to the writers."""
        # A resumed run restores the seed of the checkpoint after `before_run`.
        run.metadata["seed"] = run.seed
        lines = [f"{name}: {_format_value(value)}" for name, value in run.redact(run.metadata).items()]
        run.bus.emit("log_text", tag="runtime_info", text="\n".join(lines))


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def collect_environment(device: Any = None) -> dict[str, Any]:
    """Return the environment of the process as JSON-serializable values; unknown values are None."""
    return {
        "versions": {
            "python": platform.python_version(),
            "hookbus": hookbus.__version__,
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
        },
        "git": get_git_revision(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "device": get_device_name(device),
        "command": sys.argv,
    }


def get_git_revision(directory: Path | None = None) -> str | None:
    """Return the hash of the checked-out commit, with the suffix "-dirty" if tracked files are modified.

    Args:
        directory: Directory inside the repository; default: the current directory.

    Returns:
        Hash, or None outside a repository or without git.
    """
    commit = _run_git(directory, "rev-parse", "HEAD")
    if not commit:
        return None
    # Listing untracked files is slow in a directory of checkpoints and does not affect the tracked code.
    return f"{commit}-dirty" if _run_git(directory, "status", "--porcelain", "--untracked-files=no") else commit


def get_device_name(device: Any) -> str | None:
    """Return the device with its product name, such as "cuda:0 (NVIDIA H100)"; None for None."""
    if device is None:
        return None
    device = torch.device(device)
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _run_git(directory: Path | None, *arguments: str) -> str | None:
    # The timeout: git can block on a network file system, and a run must not depend on its commit hash.
    try:
        process = subprocess.run(
            ["git", *arguments],
            cwd=directory,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
