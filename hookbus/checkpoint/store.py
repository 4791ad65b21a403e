"""The checkpoints of a run in one directory, with the files and generations that belong to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.checkpoint import atomic_files, generations, sidecars
from hookbus.checkpoint.load import load_file_on_meta, load_on_meta
from hookbus.checkpoint.sidecars import Sidecar, read_sidecar
from hookbus.errors import CheckpointCorruptedError, CheckpointError

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives


@dataclass(slots=True)
class CheckpointStore:
    """Checkpoints of a run in one directory, for a hook that writes and removes them.

    A checkpoint is a file with a sidecar, written by `hookbus.checkpoint.write_checkpoint`. With sharded tensors it
    refers to a generation, a directory to which every rank has written its shards. Files of other owners are neither
    overwritten nor removed.

    Attributes:
        directory: The directory; it need not exist.
        run: ID of the run that owns the checkpoints.
    """

    directory: Path
    run: str = ""

    # -- reading -----------------------------------------------------------------------------

    def newest(self, pattern: str = "*.pth") -> list[Path]:
        """Return the files with a sidecar, of all runs, newest first; hidden files are ignored.

        Args:
            pattern: Pattern of the file names. Default: "*.pth".
        """
        return sidecars.list_newest_first(self.directory, pattern)

    def metadata(self, path: Path) -> Sidecar | None:
        """Return the sidecar of a file: name, size, hash, generation and run; None if it is missing or corrupted.

        Args:
            path: Path of the file.
        """
        return read_sidecar(path)

    def verify(self, path: Path) -> Sidecar:
        """Verify size and hash of a file against its sidecar.

        Args:
            path: Path of the file.

        Returns:
            Entry of the sidecar that the file matches.

        Raises:
            CheckpointError: If the file or its sidecar is missing.
            CheckpointCorruptedError: If the file matches no entry of its sidecar.
        """
        return sidecars.verify(path)

    def load_on_meta(self, path: Path) -> dict[str, Any]:
        """Load a checkpoint with its tensors on the meta device, without reading their data.

        Args:
            path: Path of the file. It is not verified against its sidecar.

        Raises:
            CheckpointError: If the file does not exist, or is not a checkpoint.
        """
        return load_on_meta(path)

    def written_by(self, path: Path, run: str | None = None) -> bool:
        """Return whether a file was written by a run and was not replaced since, according to its sidecar.

        Args:
            path: Path of the file.
            run: ID of the run. Default: None, for the run of this store.

        Raises:
            OSError: If the owner is unknown because the system could not read the sidecar.
        """
        return sidecars.written_by(path, self.run if run is None else run)

    def is_available(self, path: Path) -> bool:
        """Return whether the run may write a file: neither it nor its sidecar exists, or the run has written them.

        Args:
            path: Path of the file.

        Raises:
            OSError: If the owner is unknown because the system could not read the sidecar.
        """
        return sidecars.is_available(path, self.run)

    def sidecar_path(self, path: Path) -> Path:
        """Return the path of the sidecar of a file.

        Args:
            path: Path of the file.
        """
        return sidecars.get_sidecar_path(path)

    # -- files -------------------------------------------------------------------------------

    def add_link(self, source: Path, target: Path) -> None:
        """Add a second name to a checkpoint: a hard link, or a copy if the file system does not support hard links.

        Args:
            source: Path of a checkpoint.
            target: New name. A file of this name that the run has written is replaced.

        Raises:
            CheckpointError: If the source has no valid sidecar.
            OSError: If the link could not be written, or a file of another owner has its name.
        """
        atomic_files.add_link(source, target)

    def remove(self, path: Path) -> None:
        """Delete a file and its sidecar. An interrupted call never leaves a file without an owner.

        Args:
            path: Path of the file, which the run must have written, see `written_by`.

        Raises:
            OSError: If the file cannot be deleted.
        """
        atomic_files.remove(path)

    # -- generations -------------------------------------------------------------------------

    def generations(self) -> Iterator[int]:
        """Yield the numbers of the generations of all runs, whether corrupted or not."""
        return (
            number for number, path in generations.iter_generations(self.directory) if generations.is_generation(path)
        )

    def generation_path(self, generation: int) -> Path:
        """Return the directory of a generation; it need not exist.

        Args:
            generation: Number of the generation.
        """
        return self.directory / generations.get_directory_name(generation)

    def write_sharded(self, checkpoint: dict[str, Any], generation: int, ranks: Collectives) -> dict[str, Any]:
        """Write the shards of a checkpoint as a generation. A collective call, which fails on all ranks or on none.

        Args:
            checkpoint: Checkpoint of this rank. Values that are not sharded are taken from rank 0.
            generation: Number of the generation, which does not exist yet.
            ranks: Collectives of the run; outside the main thread, those of a separate process group.

        Returns:
            Content of the file that refers to this generation, to be written by `write_checkpoint`.

        Raises:
            CheckpointError: If the generation could not be written. Nothing of it remains.
        """
        from hookbus.checkpoint.sharded import write_generation  # the module takes long to import

        return write_generation(self.directory, checkpoint, generation, ranks)

    def remove_unreferenced(self) -> None:
        """Remove the generations of the run that no file refers to.

        Raises:
            OSError: If a generation cannot be removed.
        """
        # A link to a directory is foreign, even if a generation was moved and replaced by the link.
        unreferenced = {path for _, path in generations.iter_generations(self.directory) if not path.is_symlink()}
        for path in self.directory.glob("[!.]*.pth") if unreferenced else ():
            # A FIFO in the place of a file would block.
            if os.path.isfile(path):
                unreferenced -= _get_references(path)
        for directory in unreferenced:
            # Without a valid manifest the owner is unknown, so the directory is kept.
            with suppress(CheckpointError):
                if generations.read_manifest(directory)["run"] == self.run:
                    generations.remove_generation(directory, self.run)


def _get_references(path: Path) -> set[Path | None]:
    """Return the generation that a file refers to, or the ones that it may refer to if it cannot be read."""
    try:
        return {generations.resolve_pointer(path, load_file_on_meta(path))}
    except CheckpointCorruptedError:
        # It cannot be resumed from, so it keeps no generation.
        return set()
    except CheckpointError:
        # It may be readable later. The sidecar contains the number of its generation.
        sidecar = read_sidecar(path)
        entries = () if sidecar is None else (sidecar, *sidecar.previous)
        return {path.parent / generations.get_directory_name(entry.generation) for entry in entries}
