"""Runs that log to a tracking server, which fails, stops and starts again."""

import math
import threading
import time

import pytest
from mlflow import MlflowClient

from hookbus import Hook
from hookbus.errors import HookError, RejectedRecordsError
from hookbus.testing import fake_training
from hookbus.testing.training import collect_warnings
from hookbus_mlflow import MLflowHook
from hookbus_mlflow.target import Target
from hookbus_mlflow.writer import MLflowWriter

from .tracking_server import TrackingServer


class FastRetryHook(MLflowHook):
    pause, patience = 0.05, 20.0


@pytest.fixture
def server(database, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = TrackingServer(database, tmp_path / "artifacts")
    yield server
    server.close()


class StopServer(Hook):
    """Stop the server in the last iteration, and start it again after a delay, or never."""

    def __init__(self, server, delay):
        super().__init__()
        self.server, self.delay = server, delay

    def before_train_iter(self, run):
        if run.iters_done == 5:
            self.server.stop()
            if self.delay is not None:
                threading.Timer(self.delay, self.server.start).start()


def get_run(server):
    client = MlflowClient(server.url)
    (run,) = client.search_runs([client.get_experiment_by_name("hookbus").experiment_id])
    return client, run


def get_history(server, name):
    client, run = get_run(server)
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def make_hook(server, cls=FastRetryHook, **settings):
    return cls(tracking_uri=server.url, interval=1, name="mlflow", **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "status"), [(False, "FINISHED"), (True, "FAILED")])
def test_server_that_returns_after_the_run_gets_all_records_and_the_status(server, tmp_path, fails, status):
    class Fail(Hook):
        def after_epoch(self, epoch):
            if fails and epoch == 1:
                raise HookError("stop here")

    def train():
        try:
            fake_training([make_hook(server), StopServer(server, 0.5), Fail()], losses=float, work_dir=tmp_path / "run")
        except HookError:
            assert fails

    messages = collect_warnings(train)
    assert get_history(server, "train/loss") == [(step, float(step)) for step in range(1, 7)]
    assert get_run(server)[1].info.status == status
    assert [message for message in messages if "are missing" in message] == []


def test_server_that_does_not_return_is_reported_once_with_the_number_of_records(server, tmp_path):
    class Hasty(FastRetryHook):
        patience = 0.5

    begin = time.monotonic()
    messages = collect_warnings(
        lambda: fake_training([make_hook(server, Hasty), StopServer(server, None)], work_dir=tmp_path / "run")
    )
    assert time.monotonic() - begin < 30  # a bound that a retry without end would exceed
    reports = [message for message in messages if "are missing" in message]
    assert len(reports) == 1
    assert "1 outcomes" in reports[0]
    assert server.url in reports[0]


class LogValues(Hook):
    """Log values in one iteration."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def after_train_iter(self, run):
        if run.iters_done == 3:
            run.bus.emit("log_scalars", values=self.values)


def refuse_nan(name, request):
    values = [metric.get("value") for metric in request.get("metrics", ())]
    return 400 if name == "runs/log-batch" and "NaN" in values else 200


@pytest.mark.slow
def test_only_values_that_the_server_rejects_are_lost_and_named(server, tmp_path):
    server.status = refuse_nan
    values = {"a": 1.0, "bad": math.nan, "b": 2.0, "worse": math.nan, "c": 3.0}
    messages = collect_warnings(
        lambda: fake_training([make_hook(server), LogValues(values)], losses=float, work_dir=tmp_path / "run")
    )
    assert [get_history(server, name) for name in ("a", "b", "c")] == [[(3, 1.0)], [(3, 2.0)], [(3, 3.0)]]
    assert get_history(server, "train/loss") == [(step, float(step)) for step in range(1, 7)]
    assert get_run(server)[1].info.status == "FINISHED"
    assert "2 records are missing: 2 numbers, of which the backend rejected 'bad' (1), 'worse' (1). " in messages[-1]
    assert sum("bad" in message and "missing" in message for message in messages) == 1


def make_writer(server, tmp_path):
    writer = MLflowWriter(Target(tmp_path / "own", server.url, "hookbus", "first"))
    writer.time = 1000.5
    return writer


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 413, 500])
def test_value_that_the_server_cannot_store_is_rejected_if_others_are_accepted(server, tmp_path, status):
    def fail_on_bad(name, request):
        return status if any(metric["key"] == "bad" for metric in request.get("metrics", ())) else 200

    writer = make_writer(server, tmp_path)
    server.status = fail_on_bad
    writer.write_scalars({f"n{k}": float(k) for k in range(50)} | {"bad": 0.0}, 1)
    with pytest.raises(RejectedRecordsError, match=r"'bad' = 0\.0: MLflow: ") as caught:
        writer.flush()
    assert caught.value.names == ["bad"]
    assert [get_history(server, f"n{k}") for k in range(50)] == [[(1, float(k))] for k in range(50)]


@pytest.mark.slow
def test_server_error_of_every_value_raises_an_oserror(server, tmp_path):
    writer = make_writer(server, tmp_path)
    server.status = lambda name, request: 500
    writer.write_scalars({f"n{k}": float(k) for k in range(1000)}, 1)
    with pytest.raises(OSError, match="MLflow: "):
        writer.flush()
    assert len(server.paths) < 100


def test_other_params_are_logged_if_one_is_rejected(server, tmp_path):
    def fail_on_bad(name, request):
        return 400 if any(param["key"] == "bad" for param in request.get("params", ())) else 200

    writer = make_writer(server, tmp_path)
    server.status = fail_on_bad
    with pytest.raises(RejectedRecordsError) as caught:
        writer.write_config({"lr": 0.5, "bad": 1, "epochs": 3})
    assert (caught.value.names, caught.value.kind) == (["bad"], "params")
    assert get_run(server)[1].data.params == {"lr": "0.5", "epochs": "3"}
