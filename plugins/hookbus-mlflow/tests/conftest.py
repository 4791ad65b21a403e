"""Databases of MLflow: created once and copied, because the creation of the tables takes seconds."""

import shutil
import uuid
from pathlib import Path

import pytest

from hookbus_mlflow.target import ensure_database


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    directory = tmp_path_factory.mktemp("database")
    ensure_database(directory / "mlflow.db", (directory / "artifacts").as_uri())
    return directory / "mlflow.db"


@pytest.fixture
def database(empty_database, tmp_path):
    """Return a new database for each test."""
    # A name of its own: MLflow keeps the connections of a path, and older versions of pytest use a directory again.
    return Path(shutil.copy(empty_database, tmp_path / f"{uuid.uuid4().hex}.db"))
