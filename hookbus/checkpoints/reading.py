"""Checkpoint files as torch writes and reads them: as data, and without their numbers where an outline is enough."""

from __future__ import annotations

import copy
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from hookbus.checkpoints import files
from hookbus.checkpoints.generations import COMMON, POINTER, generation_named, is_generation, verify_generation
from hookbus.errors import CheckpointDamaged, CheckpointError, HookWarning
from hookbus.model.wrappers import unwrapped

__all__ = [
    "check_fit",
    "content_of",
    "existing",
    "fitting_of",
    "glance_at",
    "load_into",
    "outline_of",
    "put_content",
    "verify_checkpoint",
]


def existing(path: Path | str) -> Path:
    """A checkpoint's path: a file, or the directory of a generation.

    Raises:
        CheckpointError: there is no such file; the message names those beside it.
    """
    path = Path(path)
    try:
        is_file, is_directory = path.is_file(), path.is_dir()
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read: {error.strerror}.") from None
    if is_directory and is_generation(path):
        return path
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
    directory = path if path.is_dir() else generation_named(path, outline := glance_at(path))
    return outline if directory is None else glance_at(directory / COMMON)


def glance_at(path: Path) -> dict[str, Any]:
    """The content of one file without the numbers of its tensors.

    Raises:
        CheckpointError: it is no file with such content.
    """
    return content_of(path, map_location="meta", mmap=zipfile.is_zipfile(path))


def verify_checkpoint(path: Path) -> None:
    """Compare a checkpoint with what vouches for it, byte for byte by hashes: of a generation, every file.

    A file without a sidecar, such as one from another program, passes with a warning.

    Raises:
        CheckpointError: what it names is not there.
        CheckpointDamaged: a byte is missing, too many or changed.
    """
    if path.is_dir():
        verify_generation(path)
        return
    if files.read_sidecar(path) is not None:
        files.verify(path)
    else:
        message = f"{path}: it has no sidecar {path.name}.json, so damage would not be noticed."
        warnings.warn(message, HookWarning, stacklevel=3)
    content = glance_at(path)
    directory = generation_named(path, content)
    if directory is not None:
        verify_generation(directory, content[POINTER]["manifest"])


def put_content(content: Mapping[str, Any], file: IO[bytes]) -> None:
    """Have torch write a checkpoint. Its own checksum is left out: ours is faster, and is looked at when reading.

    Raises:
        OSError: the file could not be finished.
    """
    crc32 = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(dict(content), file)
    except RuntimeError as error:  # what torch says of a file that it could not finish hides why
        raise next((cause for cause in _causes(error) if isinstance(cause, OSError)), error) from None
    finally:
        torch.serialization.set_crc32_options(crc32)


def load_into(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Put weights into a model.

    Raises:
        CheckpointError: they do not fit; the message says which.
    """
    try:
        unwrapped(model).load_state_dict(dict(weights))
    except RuntimeError as error:
        raise CheckpointError(f"The weights do not fit the model: {' '.join(str(error).split())}") from None


def fitting_of(model: nn.Module, weights: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Those weights that the model has as well, in the same shape, and the names of its own that are not among them.

    Raises:
        CheckpointError: there is none.
    """
    own = unwrapped(model).state_dict()
    fitting = {name: value for name, value in weights.items() if _has_the_shape_of(value, own.get(name))}
    if own and not fitting:
        names = [", ".join(list(each)[:3]) for each in (weights, own)]
        raise CheckpointError(f"None of the weights fits: the file has {names[0]} ..., the model {names[1]} ...")
    return fitting, sorted(set(own) - set(fitting))


def check_fit(model: nn.Module, weights: Mapping[str, Any], *, strict: bool = True) -> None:
    """See that weights fit a model, which stays as it is.

    Args:
        model: the model. One that cannot be copied is not looked at.
        weights: an outline of a state dict: only names and shapes count.
        strict: all of them have to fit; otherwise one is enough.

    Raises:
        CheckpointError: they do not fit.
    """
    if not strict:
        fitting_of(model, weights)
        return
    model = unwrapped(model)
    tensors = [*model.parameters(), *model.buffers()]
    try:
        outline = copy.deepcopy(model, {id(each): _outline(each) for each in tensors})
    except Exception:
        return
    load_into(outline, weights)


def _has_the_shape_of(value: Any, own: Any) -> bool:
    """Whether both are tensors of one shape, or both something else that a module keeps."""
    return own is not None and getattr(value, "shape", None) == getattr(own, "shape", None)


def _outline(tensor: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(tensor, device="meta", requires_grad=False)
    return nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions during whose handling an exception was raised."""
    cause = error.__context__
    while cause is not None:
        yield cause
        cause = cause.__context__


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
