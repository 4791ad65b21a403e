"""Merge the files of a generation into a single checkpoint file."""

from __future__ import annotations

from pathlib import Path

from hookbus.checkpoint.generations import read_manifest, resolve_pointer
from hookbus.checkpoint.load import load_file_on_meta, resolve_path
from hookbus.checkpoint.state import read_checkpoint, write_checkpoint
from hookbus.errors import CheckpointError


def consolidate(path: Path, output: Path | None = None) -> Path:
    """Write the checkpoint of a distributed run as one file with full tensors. All tensors must fit in memory.

    Raises:
        CheckpointError: If the generation does not exist, or if the file already exists or cannot be written.
        CheckpointCorruptedError: If a checksum of the generation does not match.
    """
    path = resolve_path(path)
    directory = path if path.is_dir() else resolve_pointer(path, load_file_on_meta(path))
    if directory is None:
        raise CheckpointError(f"{path}: the checkpoint is already a single file with full tensors.")
    # `resolve` follows a symbolic link, so that the file is named after the generation and not after the link.
    output = output or directory.with_name(f"{directory.resolve().name}.pth")
    if output.exists():
        raise CheckpointError(f"{output} already exists. Move it, or pass another file to --output.")
    checkpoint = read_checkpoint(path)
    try:
        write_checkpoint(output, checkpoint, int(read_manifest(directory)["generation"]))
    except OSError as error:
        raise CheckpointError(f"{output} could not be written: {error}.") from error
    return output
