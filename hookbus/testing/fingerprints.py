"""Hashes of nested values for bitwise comparisons."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def fingerprint(value: Any) -> str:
    """Return the SHA-256 hash of nested containers of built-in types and tensors.

    Bitwise identical values have equal hashes. The order of mappings is significant.

    Args:
        value: Nested mappings, sequences, built-in values and tensors.
    """
    digest = hashlib.sha256()
    _update_digest(digest, value)
    return digest.hexdigest()


def _update_digest(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous()
        digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _update_digest(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} items".encode())
        for item in value:
            _update_digest(digest, item)
    else:
        digest.update(repr(value).encode())
