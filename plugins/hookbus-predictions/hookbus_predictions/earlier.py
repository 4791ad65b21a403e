"""Files of earlier predictions."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path


def find_predictions(path: Path, others: Iterable[Path] = ()) -> list[Path]:
    """Return the existing files of predictions: of all loaders and ranks, and of batches.

    Args:
        path: File of the predictions without the names of loaders and ranks.
        others: Files of the predictions of other hooks. Theirs are omitted if their names begin with that of `path`,
            such as `predictions-b.pt` for `predictions.pt`. Default: none.
    """
    longer = [other for other in others if other.name.startswith(f"{path.stem}-") and other.parent == path.parent]
    return sorted(_find(path).difference(*map(_find, longer)))


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
