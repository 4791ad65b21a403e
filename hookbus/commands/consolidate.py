"""One file out of a generation, which everything can read that reads checkpoints."""

from __future__ import annotations

from pathlib import Path

from hookbus.checkpoints.generations import generation_named, read_manifest
from hookbus.checkpoints.reading import existing, glance_at
from hookbus.errors import CheckpointError
from hookbus.state import read_checkpoint, write_checkpoint

__all__ = ["consolidate"]


def consolidate(path: Path, output: Path | None = None) -> Path:
    """Write a checkpoint of several processes as one file with whole tensors. It needs memory for all of them.

    Args:
        path: the directory of a generation, or a file that names one.
        output: where to; default beside the directory, under its name.

    Returns:
        The file, which has a sidecar.

    Raises:
        CheckpointError: there is no such generation, it cannot be written, or something is there already.
        CheckpointDamaged: a byte of the generation is not as it was written.
    """
    path = existing(path)
    directory = path if path.is_dir() else generation_named(path, glance_at(path))
    if directory is None:
        raise CheckpointError(f"{path}: it is one file already, with whole tensors in it.")
    output = output or directory.with_name(f"{directory.resolve().name}.pth")
    if output.exists():
        raise CheckpointError(f"{output} is there already. Move it, or give another file by --output.")
    checkpoint = read_checkpoint(path)
    try:
        write_checkpoint(output, checkpoint, int(read_manifest(directory)["generation"]))
    except OSError as error:
        raise CheckpointError(f"{output} could not be written: {error}.") from error
    return output
