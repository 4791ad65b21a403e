"""Load and verify checkpoint files: as data, optionally with tensors on the meta device."""

from __future__ import annotations

import os
import re
import stat
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from hookbus._utils.files import get_reason, open_regular_file
from hookbus._utils.schema import InvalidDataError
from hookbus.checkpoint import sidecars
from hookbus.checkpoint.generations import COMMON_FILE, POINTER_KEY, is_generation, resolve_pointer, verify_generation
from hookbus.checkpoint.plain_data import check_structure
from hookbus.errors import CheckpointCorruptedError, CheckpointError, HookWarning, format_path


def resolve_path(path: Path | str) -> Path:
    """Return the path of a checkpoint: a file, or the directory of a generation.

    Raises:
        CheckpointError: If the path does not exist; the message lists the checkpoints in the same directory.
    """
    path = Path(path)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode) and is_generation(path):
            return path
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{format_path(path)}: file does not exist.{_list_files(path.parent)}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{format_path(path)}: file cannot be read: {get_reason(error)}.") from None
    if stat.S_ISDIR(mode):
        raise CheckpointError(f"{format_path(path)}: is a directory. Pass the path of a file.{_list_files(path)}")
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{format_path(path)}: is not a regular file. Pass the path of a file.")
    return path


def load_file(path: Path, **options: Any) -> dict[str, Any]:
    """Load a file with `torch.load(weights_only=True)`, which executes no code from it.

    Raises:
        CheckpointError: If the file cannot be opened, or does not contain a dict.
        CheckpointCorruptedError: If `torch.save` did not write the file, or it contains other objects than data.
    """
    try:
        # torch opens the file by its path, and would block on a FIFO.
        open_regular_file(path).close()
        content = _load(path, options)
        check_structure(content)
    except InvalidDataError as error:
        raise CheckpointCorruptedError(f"{format_path(path)}: {error}.") from None
    except OSError as error:
        raise CheckpointError(f"{format_path(path)}: file cannot be read: {error.strerror or error}.") from None
    except Exception as error:
        reason = _get_reason(str(error))
        raise CheckpointCorruptedError(f"{format_path(path)}: file cannot be loaded as data: {reason}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{format_path(path)}: not a checkpoint: expected a dict, got {type(content).__name__}.")
    return content


def load_on_meta(path: Path | str) -> dict[str, Any]:
    """Load the metadata of a file or generation, see `CheckpointStore.load_on_meta`."""
    path = resolve_path(path)
    directory = path if path.is_dir() else resolve_pointer(path, content := load_file_on_meta(path))
    return content if directory is None else load_file_on_meta(directory / COMMON_FILE)


def load_file_on_meta(path: Path) -> dict[str, Any]:
    """Load a single file with its tensors on the meta device.

    Raises:
        CheckpointError: If the file cannot be loaded as a checkpoint.
    """
    # torch.load supports `mmap` only for zip files; the legacy format is read completely.
    return load_file(path, map_location="meta", mmap=zipfile.is_zipfile(path))


def verify_checkpoint(path: Path) -> None:
    """Verify the checksums of a checkpoint: a file and its sidecar, and every file of the generation it refers to.

    A checkpoint without its sidecar is accepted with a warning. A file of another program has none.

    Raises:
        CheckpointError: If the generation of a reference does not exist.
        CheckpointCorruptedError: If a file is missing or corrupted.
    """
    if path.is_dir():
        verify_generation(path)
        return
    has_sidecar = sidecars.read_sidecar(path) is not None
    if has_sidecar:
        sidecars.verify(path)
    content = load_file_on_meta(path)
    # A file of another program, such as a bare state dict, never had a sidecar.
    if not has_sidecar and ("meta" in content or POINTER_KEY in content):
        message = (
            f"{format_path(path)}: no valid sidecar {format_path(path.name)}.json, so corruption cannot be detected. "
            "Copy it together with the checkpoint."
        )
        warnings.warn(message, HookWarning, stacklevel=3)
    directory = resolve_pointer(path, content)
    if directory is not None:
        verify_generation(directory, content[POINTER_KEY]["manifest"])


def save_file(content: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a checkpoint with `torch.save`, without the CRC-32 checksums of the zip format.

    Raises:
        OSError: If the file could not be written completely.
    """
    # The sidecar has an XXH3 hash, which is faster to compute and is verified when the file is loaded.
    crc32 = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(dict(content), file)
    except RuntimeError as error:
        # When finishing a zip file fails, torch raises a RuntimeError while handling the OSError that caused it.
        raise next((cause for cause in _iter_causes(error) if isinstance(cause, OSError)), error) from None
    finally:
        torch.serialization.set_crc32_options(crc32)


def _iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the chain of exceptions during whose handling an exception was raised."""
    cause = error.__context__
    while cause is not None:
        yield cause
        cause = cause.__context__


def _get_reason(message: str) -> str:
    """Return the reason for a failed `torch.load`."""
    # The message of torch recommends `weights_only=False`, which executes code from the file, so it is replaced.
    match = re.search(r"GLOBAL ([\w.]+)", message)
    if match is None:
        return "not a file written by torch.save, or truncated."
    return (
        f"it contains {match[1]}, and loading that would execute code. Save only the weights in the program that wrote "
        "the file: torch.save(model.state_dict(), path)."
    )


def _load(path: Path, options: dict[str, Any]) -> Any:
    """Load a file on the requested device; on the CPU instead of the meta device if it contains quantized tensors."""
    try:
        return torch.load(path, weights_only=True, **options)
    except NotImplementedError:
        if options.get("map_location") != "meta":
            raise
        return torch.load(path, weights_only=True, **options | {"map_location": "cpu"})


def _list_files(directory: Path) -> str:
    try:
        names = sorted(format_path(path.name) for path in directory.glob("*.pth"))
    except (OSError, ValueError):
        return ""
    return f" Available in {format_path(directory)}: {', '.join(names)}." if names else ""
