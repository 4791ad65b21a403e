"""Which process is this? Read from the environment that torchrun sets; hookbus starts no processes."""

from __future__ import annotations

import os

__all__ = ["is_main", "rank", "world_size"]


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0
