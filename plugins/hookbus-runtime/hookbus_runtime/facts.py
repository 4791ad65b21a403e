"""Facts about a process: what runs, in which versions, where."""

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

__all__ = ["device_name", "facts", "git_revision"]

WAIT = 5
"""Seconds that git gets for an answer."""


def facts(device: Any = None) -> dict[str, Any]:
    """What can be known of this process, as plain values; what is not known is None.

    Args:
        device: where the model is.
    """
    return {
        "versions": _versions(),
        "git": git_revision(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "device": device_name(device),
        "command": sys.argv,
    }


def git_revision(directory: Path | None = None) -> str | None:
    """The commit that is checked out, with "-dirty" where files differ from it; None where there is none.

    Args:
        directory: inside the repository; default the current directory.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if not commit:
        return None
    return f"{commit}-dirty" if _git(directory, "status", "--porcelain", "--untracked-files=no") else commit


def device_name(device: Any) -> str | None:
    """The device as people know it: "cuda:0 (NVIDIA H100)"."""
    if device is None:
        return None
    kind = torch.device(device)
    return f"{kind} ({torch.cuda.get_device_name(kind)})" if kind.type == "cuda" else str(kind)


def _versions() -> Mapping[str, str | None]:
    return {
        "python": platform.python_version(),
        "hookbus": hookbus.__version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }


def _git(directory: Path | None, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, check=True, timeout=WAIT
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
