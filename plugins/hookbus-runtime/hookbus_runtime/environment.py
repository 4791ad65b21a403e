"""Environment of the process: versions, git commit, host and device."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import hookbus

GIT_TIMEOUT_S = 5
"""Timeout of a git command, in seconds."""


def collect_environment(device: Any = None) -> dict[str, Any]:
    """Return the environment of the process as JSON-serializable values; unknown values are None.

    Args:
        device: Device of the model; None if unknown.
    """
    return {
        "versions": _get_versions(),
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


def _get_versions() -> Mapping[str, str | None]:
    return {
        "python": platform.python_version(),
        "hookbus": hookbus.__version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }


def _run_git(directory: Path | None, *arguments: str) -> str | None:
    # The timeout: git can block on a network file system, and a run must not depend on its commit hash.
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
