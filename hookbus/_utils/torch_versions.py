"""Differences between the supported versions of torch.

Each function states the version that makes it unnecessary: remove it when that is the lowest supported version.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from packaging.version import Version

from hookbus.errors import ConfigError

FEATURES = {"distributed: fsdp2": ("2.9", "set distributed: ddp")}
"""What needs a newer torch than the lowest supported one: the version, and what to do without it."""


def require_torch(feature: str) -> None:
    """Check that torch has what a feature needs.

    Args:
        feature: Key of `FEATURES`.

    Raises:
        ConfigError: If torch is too old.
    """
    version, alternative = FEATURES[feature]
    if not is_torch(version):
        installed = Version(torch.__version__).public
        raise ConfigError(
            f"{feature} requires torch {version} or newer, got {installed}. Update torch, or {alternative}."
        )


def is_torch(version: str) -> bool:
    """Return whether torch has at least a version. Pre-releases count as the release."""
    return Version(torch.__version__).release >= Version(version).release


@contextmanager
def ignore_storage_warnings() -> Iterator[None]:
    """Context manager in which torch does not warn about its own use of deprecated storages.

    Unnecessary from torch 2.13: before, writing a distributed checkpoint causes the warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)
        yield
