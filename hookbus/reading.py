"""Checkpoint files as torch reads them: as data, and without their numbers where only an outline is wanted."""

from __future__ import annotations

import copy
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookbus.errors import CheckpointDamaged, CheckpointError
from hookbus.weights import unwrapped

__all__ = ["check_fit", "content_of", "existing", "load_into", "outline_of"]


def existing(path: Path | str) -> Path:
    """A checkpoint's path.

    Raises:
        CheckpointError: there is no such file; the message names those beside it.
    """
    path = Path(path)
    try:
        is_file, is_directory = path.is_file(), path.is_dir()
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read: {error.strerror}.") from None
    if is_directory:
        raise CheckpointError(f"{path}: it is a directory: name a file.{_files_in(path)}")
    if not is_file:
        raise CheckpointError(f"{path}: there is no such file.{_files_in(path.parent)}")
    return path


def content_of(path: Path, **how: Any) -> dict[str, Any]:
    """What torch reads from a file. No code of it is run.

    Args:
        path: the file.
        how: more arguments for `torch.load`.

    Raises:
        CheckpointError: it cannot be opened, or holds no mapping.
        CheckpointDamaged: it is no file of torch's, or holds more than data.
    """
    try:
        content = torch.load(path, weights_only=True, **how)
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read: {error.strerror or error}.") from None
    except Exception as error:
        raise CheckpointDamaged(f"{path}: it cannot be read as data: {_reason(str(error))}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: it holds a {type(content).__name__}, not a checkpoint.")
    return content


def outline_of(path: Path | str) -> dict[str, Any]:
    """What a checkpoint holds, without the numbers of its tensors: these are on the "meta" device, and are not read.

    Args:
        path: the file. It is not compared with its sidecar.

    Raises:
        CheckpointError: there is no such file, or it is not a checkpoint.
    """
    path = existing(path)
    return content_of(path, map_location="meta", mmap=zipfile.is_zipfile(path))


def load_into(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Put weights into a model.

    Raises:
        CheckpointError: they do not fit; the message says which.
    """
    try:
        unwrapped(model).load_state_dict(dict(weights))
    except RuntimeError as error:
        raise CheckpointError(f"The weights do not fit the model: {' '.join(str(error).split())}") from None


def check_fit(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """See that weights fit a model, which stays as it is.

    Args:
        model: the model. One that cannot be copied is not looked at.
        weights: an outline of a state dict: only names and shapes count.

    Raises:
        CheckpointError: they do not fit.
    """
    model = unwrapped(model)
    tensors = [*model.parameters(), *model.buffers()]
    try:
        outline = copy.deepcopy(model, {id(each): _outline(each) for each in tensors})
    except Exception:
        return
    load_into(outline, weights)


def _outline(tensor: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(tensor, device="meta", requires_grad=False)
    return nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found


def _reason(said: str) -> str:
    """Our own words for what torch says, which advises to load the file as code; that is never done here."""
    found = re.search(r"GLOBAL ([\w.]+)", said)
    if found is None:
        return "it is no file that torch.save has written, or only a part of one."
    return (
        f"it holds {found[1]}, and reading that would run code. Where the file comes from, save its weights alone: "
        "torch.save(model.state_dict(), path)."
    )


def _files_in(directory: Path) -> str:
    there = sorted(each.name for each in directory.glob("*.pth")) if directory.is_dir() else []
    return f" {directory} has {', '.join(there)}." if there else ""
