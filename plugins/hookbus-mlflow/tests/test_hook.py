import sqlite3
import time
import warnings

import pytest
from mlflow import MlflowClient

from hookbus import Hook
from hookbus.errors import HookWarning
from hookbus.testing import check_hook, fake_training, fingerprint
from hookbus_mlflow import MLflowHook


class Hasty(MLflowHook):
    """Tries again at once."""

    pause = 0.01


class Outage(Hook):
    """Takes a table away from the database after iteration 3, and gives it back after MLflow has failed."""

    def __init__(self, database, failed):
        super().__init__()
        self.database, self.failed = database, failed

    def before_train_iter(self, run):
        if run.iters_done == 3:
            wait_for(lambda: self.execute("SELECT max(step) FROM metrics") == 3)
            self.execute("ALTER TABLE metrics RENAME TO away")
        if run.iters_done == 6:
            wait_for(self.failed)
            self.execute("ALTER TABLE away RENAME TO metrics")

    def execute(self, statement):
        connection = sqlite3.connect(self.database)
        with connection:
            row = connection.execute(statement).fetchone()
        connection.close()
        return row and row[0]


def wait_for(condition):
    """The limit of pytest ends it where it never comes."""
    while not condition():
        time.sleep(0.01)


def told_by(train):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        training = train()
    return training, [str(each.message) for each in caught if issubclass(each.category, HookWarning)]


def only_run(database, experiment="hookbus"):
    client = MlflowClient(f"sqlite:///{database}")
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, run


@pytest.mark.slow
def test_keeps_the_promises_that_users_rely_on():
    check_hook(MLflowHook, interval=1)


def test_without_a_work_dir_it_says_what_to_do_and_the_run_goes_on():
    with pytest.warns(HookWarning, match="this run has none: give work_dir= to the run"):
        fake_training([MLflowHook()])


@pytest.mark.parametrize(("given", "name"), [(None, "digits-3"), ("mine", "mine")])
def test_a_run_is_called_as_given_or_as_its_work_directory(database, tmp_path, given, name):
    hook = MLflowHook(tracking_uri=f"sqlite:///{database}", experiment="mnist", run_name=given, tags={"a": "b"})
    fake_training([hook], work_dir=tmp_path / "digits-3")
    _, run = only_run(database, "mnist")
    assert (run.info.run_name, run.data.tags["a"], run.info.status) == (name, "b", "FINISHED")


def test_means_over_each_interval_and_over_what_is_left_stand_on_updates(database, tmp_path):
    fake_training([MLflowHook(tracking_uri=f"sqlite:///{database}", interval=4)], losses=float, work_dir=tmp_path / "x")
    client, run = only_run(database)
    found = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in found] == [(4, 2.5), (6, 5.5)]  # means of 1, 2, 3, 4 and of 5, 6


def test_a_server_that_is_down_costs_one_warning_and_the_records_which_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    hook = MLflowHook(tracking_uri="http://127.0.0.1:9", interval=1)
    training, told = told_by(lambda: fake_training([hook], work_dir=tmp_path))
    assert fingerprint(training.model.state_dict()) == fingerprint(fake_training().model.state_dict())
    assert training.run.outcome == "finished"
    assert [text.split(": MLflow")[0] for text in told[:1]] == ["hook 'mlflow': OSError"]
    assert "7 records are missing: 6 numbers, 1 outcomes. First: OSError: MLflow: API request" in told[1]
    assert len(told) == 2


def test_a_database_that_fails_for_a_while_costs_one_warning_and_no_record(database, tmp_path, caplog):
    def failed():
        return any("SQLAlchemy database error" in each.message for each in caplog.records)

    hook = Hasty(tracking_uri=f"sqlite:///{database}", interval=1, name="mlflow")
    training, told = told_by(
        lambda: fake_training([hook, Outage(database, failed)], batches=5, losses=float, work_dir=tmp_path / "x")
    )
    assert len(told) == 1
    assert "no such table: metrics" in told[0]
    assert "the run goes on" in told[0]
    client, run = only_run(database)
    found = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in found] == [(step, float(step)) for step in range(1, 11)]
    assert run.info.status == "FINISHED"
    assert fingerprint(training.model.state_dict()) == fingerprint(fake_training(batches=5).model.state_dict())
