import logging
import sqlite3
import time
import warnings

import pytest
from mlflow import MlflowClient

from hookbus import Hook
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import check_hook, fake_training, fingerprint
from hookbus_mlflow import MLflowHook


class FastRetryHook(MLflowHook):
    """Retry without a pause."""

    pause = 0.01


class ImpatientHook(MLflowHook):
    """Make a single attempt at the end."""

    patience = 2.0


class OutageHook(Hook):
    """Rename a table of the database after iteration 3, and restore it after MLflow has failed."""

    def __init__(self, database, failed):
        super().__init__()
        self.database, self.failed = database, failed

    def before_train_iter(self, run):
        if run.iters_done == 3:
            wait_for(lambda: self.execute("SELECT max(step) FROM metrics") == 3)
            self.execute("ALTER TABLE metrics RENAME TO hidden")
        if run.iters_done == 6:
            wait_for(self.failed)
            self.execute("ALTER TABLE hidden RENAME TO metrics")

    def execute(self, statement):
        connection = sqlite3.connect(self.database)
        with connection:
            row = connection.execute(statement).fetchone()
        connection.close()
        return row and row[0]


def wait_for(condition):
    """Wait until the condition is true; the timeout of pytest is the limit."""
    while not condition():
        time.sleep(0.01)


def collect_warnings(train):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        training = train()
    return training, [str(warning.message) for warning in caught if issubclass(warning.category, HookWarning)]


def get_only_run(database, experiment="hookbus"):
    client = MlflowClient(f"sqlite:///{database}")
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hook_passes_the_conformance_checks():
    check_hook(MLflowHook, interval=1)


def test_training_without_a_work_dir_is_refused():
    with pytest.raises(ConfigError, match="requires a work directory, got none. Set `work_dir`"):
        fake_training([MLflowHook()])


@pytest.mark.parametrize(("setting", "name"), [(None, "digits-3"), ("mine", "mine")])
def test_run_name_is_the_setting_or_that_of_the_work_directory(database, tmp_path, setting, name):
    hook = MLflowHook(tracking_uri=f"sqlite:///{database}", experiment="mnist", run_name=setting, tags={"a": "b"})
    fake_training([hook], work_dir=tmp_path / "digits-3")
    _, run = get_only_run(database, "mnist")
    assert (run.info.run_name, run.data.tags["a"], run.info.status) == (name, "b", "FINISHED")


@pytest.mark.slow
def test_means_of_full_and_partial_intervals_are_logged_by_optimizer_step(database, tmp_path):
    fake_training([MLflowHook(tracking_uri=f"sqlite:///{database}", interval=4)], losses=float, work_dir=tmp_path / "x")
    client, run = get_only_run(database)
    metrics = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in metrics] == [
        (4, 2.5),
        (6, 5.5),
    ]  # means of 1, 2, 3, 4 and of 5, 6


def test_unavailable_server_warns_once_and_dropped_records_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    hook = ImpatientHook(tracking_uri="http://127.0.0.1:9", interval=1, name="mlflow")
    training, messages = collect_warnings(lambda: fake_training([hook], work_dir=tmp_path))
    assert fingerprint(training.model.state_dict()) == fingerprint(fake_training().model.state_dict())
    assert training.run.outcome == "finished"
    assert [text.split(": MLflow")[0] for text in messages[:1]] == ["hook 'mlflow': OSError"]
    assert "7 records are missing: 6 numbers, 1 outcomes. First: OSError: MLflow: API request" in messages[1]
    assert len(messages) == 2


def test_temporary_database_failure_warns_once_and_loses_no_record(database, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("mlflow"), "propagate", True)  # MLflow 3.9 does not propagate

    def failed():
        return any("SQLAlchemy database error" in record.message for record in caplog.records)

    hook = FastRetryHook(tracking_uri=f"sqlite:///{database}", interval=1, name="mlflow")
    training, messages = collect_warnings(
        lambda: fake_training([hook, OutageHook(database, failed)], batches=5, losses=float, work_dir=tmp_path / "x")
    )
    assert len(messages) == 1
    assert "no such table: metrics" in messages[0]
    assert "training continues" in messages[0]
    client, run = get_only_run(database)
    metrics = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in metrics] == [(step, float(step)) for step in range(1, 11)]
    assert run.info.status == "FINISHED"
    assert fingerprint(training.model.state_dict()) == fingerprint(fake_training(batches=5).model.state_dict())


@pytest.mark.slow
def test_two_instances_log_to_two_runs(tmp_path):
    hooks = [MLflowHook(interval=1, name=name) for name in ("first", "second")]
    _, messages = collect_warnings(lambda: fake_training(hooks, losses=float, work_dir=tmp_path))
    assert messages == []
    for name in ("first", "second"):
        client, run = get_only_run(tmp_path / "logs" / name / "mlflow.db")
        assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 6
