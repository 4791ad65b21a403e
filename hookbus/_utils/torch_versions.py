"""Differences between the supported versions of torch.

Each function states the version that makes it unnecessary: remove it when that is the lowest supported version.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from packaging.version import Version

from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.checkpoint.storage import StorageReader

FEATURES = {
    "distributed: fsdp2": ("2.9", "set distributed: ddp"),
    "precision: fp16 on MPS": ("2.9", "set precision: bf16"),
    "fully_shard": ("2.9", "wrap the model with DistributedDataParallel"),
}
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


def load_shards(tensors: dict[str, Tensor], reader: StorageReader) -> None:
    """Load distributed tensors in place on this rank alone, without communication.

    Unnecessary from torch 2.9: before, `load` communicates whenever there is a process group, and only the deprecated
    `load_state_dict` does not.
    """
    # Imported here because `torch.distributed.checkpoint` takes long to import.
    from torch.distributed.checkpoint import state_dict_loader

    with warnings.catch_warnings():
        if is_torch("2.9"):
            # torch warns about a missing process group even if `no_dist` is set.
            warnings.filterwarnings("ignore", "torch.distributed is ", UserWarning)
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=True)
        else:
            warnings.filterwarnings("ignore", "`load_state_dict` is deprecated", FutureWarning)
            state_dict_loader.load_state_dict(tensors, reader, no_dist=True)


def is_gloo_thread(thread: Path) -> bool:
    """Return whether a thread may be a worker thread of a gloo group.

    Unnecessary from torch 2.13: before, these threads have the name of the process, as other threads of torch.

    Args:
        thread: Folder of the thread in `/proc/self/task`.

    Raises:
        OSError: If the thread has ended.
    """
    name = (thread / "comm").read_text("utf-8")
    if is_torch("2.13"):
        return name == "pt_gloo_runloop\n"
    of_python = {one.native_id for one in threading.enumerate()}
    return name == Path("/proc/self/comm").read_text("utf-8") and int(thread.name) not in of_python
