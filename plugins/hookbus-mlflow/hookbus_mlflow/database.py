"""A database of one's own, which is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["see_database"]


def see_database(path: Path, artifacts: str) -> str:
    """See that there is an SQLite database of MLflow.

    MLflow makes its tables in many steps. A process that is killed between them would leave a file that no later one
    can use, so they are made beside it.

    Args:
        path: the file; its directory is there.
        artifacts: the URI under which artifacts of new experiments go.

    Returns:
        Its URI.

    Raises:
        OSError: the file cannot be put there.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    if not path.exists():
        with TemporaryDirectory(prefix=".new-", dir=path.parent) as directory:
            made = Path(directory) / path.name
            SqlAlchemyStore(_uri(made), artifacts).engine.dispose()  # type: ignore[no-untyped-call]
            os.replace(made, path)
    return _uri(path)


def _uri(path: Path) -> str:
    """Signs that mean something in a URI are written as their codes."""
    from sqlalchemy import URL

    return URL.create("sqlite+pysqlite", database=str(path)).render_as_string()
