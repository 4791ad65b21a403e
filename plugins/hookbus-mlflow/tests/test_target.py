import os
import signal
import subprocess
import sys

import pytest
from mlflow import MlflowClient

from hookbus_mlflow.target import ensure_database

KILL_BEFORE_COMMIT = """
import os, signal, sys
from pathlib import Path
from hookbus_mlflow.target import ensure_database
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ensure_database(Path(sys.argv[1]), "file:///artifacts")
"""


def test_existing_database_is_not_modified(database):
    before = database.read_bytes()
    assert ensure_database(database, "file:///artifacts") == f"sqlite+pysqlite:///{database}"
    assert database.read_bytes() == before


def test_special_characters_of_a_uri_are_valid_in_the_path(empty_database, tmp_path):
    directory = tmp_path / "a?b#c%20d e&f=g"
    directory.mkdir()
    path = directory / "mlflow.db"
    path.write_bytes(empty_database.read_bytes())
    client = MlflowClient(ensure_database(path, "file:///artifacts"))
    run = client.create_run("0")
    assert os.listdir(tmp_path) == [directory.name]
    assert os.listdir(directory) == ["mlflow.db"]
    assert MlflowClient(ensure_database(path, "file:///artifacts")).get_run(run.info.run_id).info.status == "RUNNING"


def test_new_database_is_read_by_mlflow_and_is_the_only_file(empty_database):
    client = MlflowClient(f"sqlite:///{empty_database}")
    assert [experiment.name for experiment in client.search_experiments()] == ["Default"]
    assert os.listdir(empty_database.parent) == ["mlflow.db"]


@pytest.mark.slow
def test_killed_process_leaves_no_incomplete_database(tmp_path):
    path = tmp_path / "mlflow.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILL_BEFORE_COMMIT, str(path)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert not path.exists()
    client = MlflowClient(ensure_database(path, (tmp_path / "artifacts").as_uri()))
    assert client.create_run("0").info.status == "RUNNING"
