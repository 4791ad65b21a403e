"""A database of MLflow, made once: its tables take seconds."""

import shutil
from pathlib import Path

import pytest

from hookbus_mlflow.database import see_database


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    directory = tmp_path_factory.mktemp("database")
    see_database(directory / "mlflow.db", (directory / "artifacts").as_uri())
    return directory / "mlflow.db"


@pytest.fixture
def database(empty_database, tmp_path):
    """A database of its own for each test."""
    return Path(shutil.copy(empty_database, tmp_path / "tests.db"))
