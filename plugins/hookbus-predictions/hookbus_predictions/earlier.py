"""Files of earlier predictions."""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterable
from pathlib import Path

RANK = r"(-rank\d+)?"
"""Pattern of the end of the name of the file of one rank."""
BATCH = re.compile(r"(rank\d+-)?\d{6,}")
"""Pattern of the name of the file of a batch, without suffix."""


def find_predictions(paths: Iterable[Path], others: Iterable[Path] = (), recorded: Collection[Path] = ()) -> list[Path]:
    """Return the existing files of predictions: of loaders, ranks and batches.

    Other files are omitted, also if their names begin like that of the predictions: `predictions-old.pt` may be the
    copy of a user.

    Args:
        paths: File of the predictions without the names of loaders and ranks, then the files of the loaders.
        others: Files of the predictions of other hooks. Theirs are omitted if their names begin with that of the first
            path, such as `predictions-b.pt` for `predictions.pt`. Default: none.
        recorded: Files and directories that are known to be predictions, of loaders with any name. Default: none.
    """
    path, *loaders = paths
    longer = [other for other in others if other.name.startswith(f"{path.stem}-") and other.parent == path.parent]
    files = _find(path).difference(*map(_find, longer))
    stems = "|".join(re.escape(own.stem) for own in (path, *loaders))
    file_stem, batch_directory = re.compile(f"({stems}){RANK}"), re.compile(f"({stems})-batches")

    def is_prediction(file: Path) -> bool:
        if file.parent == path.parent:
            return file in recorded or file_stem.fullmatch(file.stem) is not None
        is_own = file.parent in recorded or batch_directory.fullmatch(file.parent.name) is not None
        return is_own and BATCH.fullmatch(file.stem) is not None

    return sorted(filter(is_prediction, files))


def _find(path: Path) -> set[Path]:
    stem, suffix = glob.escape(path.stem), path.suffix
    derived = (f"{stem}-*{suffix}", f"{stem}-batches/*{suffix}", f"{stem}-*-batches/*{suffix}")
    files = {file for pattern in (glob.escape(path.name), *derived) for file in path.parent.glob(pattern)}
    return {file for file in files if file.is_file()}


def remove_outdated(files: Iterable[Path]) -> None:
    """Remove files, and the directories that are empty without them.

    Args:
        files: Files of batches or of loaders.
    """
    directories = {file.parent for file in files if file.parent.name.endswith("-batches")}
    for file in files:
        file.unlink(missing_ok=True)
    for directory in directories:
        if not any(directory.iterdir()):
            directory.rmdir()
