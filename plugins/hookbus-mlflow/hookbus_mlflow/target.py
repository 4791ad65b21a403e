"""The MLflow run that a writer logs to, and the atomic creation of a local database."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from mlflow import MlflowClient
from mlflow.store.db.db_types import DATABASE_ENGINES

from hookbus.checkpoint import atomic_write, make_temporary_name
from hookbus.errors import format_path
from hookbus.writers import read_regular_file

MAX_ID_BYTES = 200
"""Maximum size of a file that contains an ID."""

OWNER_TAG = "hookbus.owner"
"""Tag that identifies the run of a directory."""


@dataclass(frozen=True)
class Target:
    """MLflow run that a writer logs to.

    Attributes:
        directory: Absolute path of the directory that contains the ID of the run and, without `uri`, the database and
            the artifacts.
        uri: URI of a server or database; None for a database in `directory`.
        experiment: Name of the experiment.
        run_name: Name of a new run.
        tags: Tags of a new run.
        owner: ID of the run of hookbus, for the names of temporary files.
    """

    directory: Path
    uri: str | None
    experiment: str
    run_name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""

    @property
    def id_file(self) -> Path:
        """File that contains the ID of the run."""
        return self.directory / "run_id"

    @property
    def is_database(self) -> bool:
        """Whether the run is stored in a database without a server."""
        return not self.uri or self.uri.partition(":")[0].partition("+")[0] in DATABASE_ENGINES

    @property
    def _artifact_uri(self) -> str:
        return (self.directory / "artifacts").as_uri()

    def create_client(self) -> MlflowClient:
        """Return a client of the server or database; the database in `directory` is created if it does not exist."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.uri:
            return MlflowClient(self.uri)
        return MlflowClient(ensure_database(self.directory / "mlflow.db", self._artifact_uri, self.owner))

    def find_or_create_run(self, client: MlflowClient) -> str:
        """Return the stored ID, or that of a new run, or of the run of a process that was killed before it stored it.

        Raises:
            ValueError: If a file of an ID contains none.
        """
        if os.path.lexists(self.id_file):
            return _read_id(self.id_file)
        existing = client.get_experiment_by_name(self.experiment)
        artifacts = None if self.uri else self._artifact_uri
        experiment = existing.experiment_id if existing else client.create_experiment(self.experiment, artifacts)
        # The owner is stored before the run is created and the ID afterwards: a kill in between leaves a run that the
        # next process finds by the tag, instead of an orphaned run.
        tags = {**self.tags, OWNER_TAG: self._read_or_create(self.directory / "owner", token_hex(16))}
        runs = client.search_runs([experiment], f"tags.`{OWNER_TAG}` = '{tags[OWNER_TAG]}'")
        run = runs[0] if runs else client.create_run(experiment, tags=tags, run_name=self.run_name)
        return self._read_or_create(self.id_file, run.info.run_id)

    def _read_or_create(self, file: Path, text: str) -> str:
        """Return the ID in a file, which is created atomically with `text` if it does not exist."""
        if not os.path.lexists(file):
            atomic_write(file, lambda opened: opened.write(text.encode()), run=self.owner)
        return _read_id(file)


def _read_id(file: Path) -> str:
    """Return the ID in a file.

    Raises:
        ValueError: If the file does not contain an ID.
    """
    try:
        text = read_regular_file(file, MAX_ID_BYTES).decode().strip()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{format_path(file)}: the ID of the MLflow run cannot be read: {error}") from error
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{format_path(file)}: expected the ID of an MLflow run, got {text[:40]!r}")
    return text


def ensure_database(path: Path, artifacts: str, owner: str = "") -> str:
    """Create an SQLite database of MLflow atomically, unless it exists.

    Args:
        path: File of the database, in an existing directory.
        artifacts: URI of the artifacts of new experiments.
        owner: ID of the run of hookbus, whose next process removes the temporary directory of a killed one.

    Returns:
        URI of the database.
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
    from sqlalchemy import URL, make_url

    url = URL.create("sqlite+pysqlite", database=str(path)).render_as_string()
    if make_url(url).database == str(path):
        return url
    # SQLAlchemy 2.0 does not escape a question mark in the path. Unnecessary from 2.1.
    return f"sqlite+pysqlite:///{path.as_uri()}?uri=true"
