"""Are two results the same, bit for bit?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["fingerprint"]


def fingerprint(value: Any) -> str:
    """A hash of plain values and tensors, nested as they like; equal bits give equal hashes."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} items".encode())
        for each in value:
            _feed(digest, each)
    else:
        digest.update(repr(value).encode())
