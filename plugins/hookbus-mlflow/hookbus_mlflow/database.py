"""Atomic creation of a local MLflow database."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hookbus.checkpoint import make_temporary_name


def ensure_database(path: Path, artifacts: str, owner: str = "") -> str:
    """Create an SQLite database of MLflow atomically, unless it exists.

    Args:
        path: File of the database, in an existing directory.
        artifacts: URI of the artifacts of new experiments.
        owner: ID of the run of hookbus, whose next process removes the temporary directory of a killed one.

    Returns:
        URI of the database.

    Raises:
        OSError: If the file cannot be created.
    """
    # Imported here, because SQLAlchemy and the store are not needed with a tracking server.
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    if not path.exists():
        # MLflow creates the tables in many migrations, and cannot open a database that a kill left between two of them
        # (mlflow 3.17). The directory is next to the file, because `os.replace` requires the same file system.
        directory = path.parent / make_temporary_name(owner)
        directory.mkdir()
        try:
            temporary = directory / path.name
            # Disposed, because an open connection would keep a journal under the temporary name.
            SqlAlchemyStore(_build_uri(temporary), artifacts).engine.dispose()  # type: ignore[no-untyped-call]
            os.replace(temporary, path)
        finally:
            shutil.rmtree(directory)
    return _build_uri(path)


def _build_uri(path: Path) -> str:
    """Return the SQLAlchemy URL of a file, with special characters escaped."""
    from sqlalchemy import URL

    return URL.create("sqlite+pysqlite", database=str(path)).render_as_string()
